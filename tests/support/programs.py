# SPDX-License-Identifier: Apache-2.0
"""Running a program under a deadline, and torch's order, for the tests of the examples and of the languages."""
import collections
import random
import subprocess
import tempfile

DEADLINE_S = 60

Finished = collections.namedtuple("Finished", "pid code out err")


def run(*command, deadline_s=DEADLINE_S):
    """Runs to the end. Output goes through files: a left-over worker that holds a pipe open couldn't hang the test."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=out, stderr=err)
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


def torch_randperm(n, seed):
    """torch.randperm(n) on CPU: Fisher-Yates by remainder over mt19937, seeded as Python itself never does it."""
    state = [seed & 0xFFFFFFFF]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
    generator = random.Random()
    generator.setstate((3, (*state, 624), None))
    order = list(range(n))
    for i in range(n - 1):
        j = i + generator.getrandbits(32) % (n - i)
        order[i], order[j] = order[j], order[i]
    return order
