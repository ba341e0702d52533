# SPDX-License-Identifier: Apache-2.0
"""Running a program under a deadline, for the tests of the examples and of the languages."""
import collections
import subprocess
import tempfile

DEADLINE_S = 60

Finished = collections.namedtuple("Finished", "pid code out err")


def run(*command, deadline_s=DEADLINE_S, env=None):
    """Runs to the end. env: the whole environment; None: this process's. Output goes through files: a left-over worker that
    holds a pipe open couldn't hang the test."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   env=env)
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = f"none: still running after {deadline_s} s"
        out.seek(0)
        err.seek(0)
        return Finished(process.pid, code, out.read(), err.read())


def describe(command, finished):
    """What a failed check prints."""
    return (f"\ncommand: {' '.join(str(c) for c in command)}\nexit code: {finished.code}"
            f"\nstdout:\n{finished.out}\nstderr:\n{finished.err}")
