# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of tools/try-frameworks by torch's data loader and by feedlane.DataLoader, and prints what differs.

Each suite runs in a pytest process per loader. A case that ends the process, or in which nothing happens for two minutes, has
failed; the cases after it are run by another process. A case that differs is run twice more by torch's loader alone: if
torch's results vary among themselves, the case is listed as unsteady and does not count.

Usage: run.py [--suites NAME,...] [--checkout NAME=FOLDER]... [--log FOLDER] [--downloads FOLDER]"""
import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

import suites

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LOADERS = ("torch", "feedlane")
SLOWNESS = max(1.0, float(os.environ.get("FEEDLANE_TEST_SLOWNESS", "1")))
PATIENCE_S = 120 * SLOWNESS  # without the start or the end of a case
WHOLE_S = 1200 * SLOWNESS  # for the cases of a suite by one loader
PROCESSES = 12  # of pytest for a suite; each but the first continues after one that was killed


class Runner:
    """Runs pytest for one suite, in one folder, by either loader."""

    def __init__(self, suite, folder, tests, arguments, logs, imported=()):
        self.suite, self.folder, self.tests, self.arguments, self.logs = suite, folder, tests, arguments, logs
        self.imported = imported  # folders to import from, before what is installed

    def results(self, loader, only=None):
        """{case: (outcome, text, values)}, of the cases `only` if it is not None."""
        found, deadline = {}, time.monotonic() + WHOLE_S
        for _ in range(PROCESSES):
            entries, how = self._process(loader, found, only, deadline)
            started = None
            for entry in entries:
                if "started" in entry:
                    started = entry["started"]
                elif "ended" in entry:
                    started = None
                elif found.get(entry.get("case"), ("passed",))[0] == "passed" and "case" in entry:
                    found[entry["case"]] = (entry["outcome"], entry["text"], entry["values"])
            if any("finished" in entry for entry in entries):
                break
            found[started or f"{self.suite.name} (outside any case)"] = ("failed", f"pytest {how}", [])
            if started is None or time.monotonic() > deadline:
                break
        return found

    def _process(self, loader, left_out, only, deadline):
        with tempfile.TemporaryDirectory() as scratch:
            record = pathlib.Path(scratch, "record")
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "record", "-o", "addopts=", "-W", "ignore",
                       "--record", record, "--basetemp", pathlib.Path(scratch, "cases"), "--rootdir", self.folder]
            for option, cases in ("--left-out", left_out), ("--only", only):
                if cases is not None:
                    names = pathlib.Path(scratch, option[2:])
                    names.write_text("\n".join(cases), encoding="utf-8")
                    command += [option, names]
            command += [*self.arguments, *self.tests]
            record.touch()
            with open(self.logs / f"{self.suite.name}.{loader}.log", "a", encoding="utf-8") as log:
                process = subprocess.Popen(list(map(str, command)), cwd=self.folder, env=self._environment(loader, scratch),
                                           stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
                how = wait(process, record, deadline)
            return [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()], how

    def _environment(self, loader, scratch):
        library = os.environ.get("FEEDLANE_LIBRARY", str(ROOT / "build/capi/libfeedlane.so.1"))
        path = [HERE / "swap", HERE, ROOT / "capi/python", *self.imported, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "FRAMEWORKS_LOADER": loader, "FEEDLANE_LIBRARY": library, "PYTHONPATH": os.pathsep.join(map(str, path)),
                "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
                "YOLO_OFFLINE": "true", "YOLO_CONFIG_DIR": scratch, "MPLBACKEND": "agg", "HOME": scratch, "OMP_NUM_THREADS": "1"}


def wait(process, record, deadline):
    """Waits for the end of a pytest process, kills it if nothing happens, and returns how it ended."""
    size, changed = 0, time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(timeout=1)
            with contextlib.suppress(ProcessLookupError):  # workers that outlive it
                os.killpg(process.pid, signal.SIGKILL)
            return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        now, length = time.monotonic(), record.stat().st_size
        if length != size:
            size, changed = length, now
        if now - changed > PATIENCE_S or now > deadline:
            process.send_signal(signal.SIGABRT)  # pytest's faulthandler prints where it hangs
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"hung: killed after {now - changed:.0f} s without a result"


# ---- what is run ----

def sdist(package, version, downloads):
    """The unpacked sources of a PyPI package."""
    folder = downloads / f"{package}-{version}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=downloads) as scratch:
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation", "--no-binary", ":all:",
                            "-d", scratch, f"{package}=={version}"], check=True, stdout=subprocess.DEVNULL,
                           env={**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"})
            packed, = pathlib.Path(scratch).glob("*.tar.gz")
            with tarfile.open(packed) as file:
                file.extractall(scratch, filter="data")
            unpacked, = (path for path in pathlib.Path(scratch).iterdir() if path.is_dir())
            unpacked.rename(folder)
    return folder


def runners(suite, version, chosen, logs):
    program = HERE / "programs" / f"{suite.name}_program.py"
    if program.exists():
        yield Runner(suite, program.parent, [program.name], [], logs)
    sources = chosen.checkout.get(suite.name)
    if sources is None and suite.sdist:
        sources = sdist(suite.package, version, chosen.downloads)
    if sources is not None:
        tests = [test for test in suite.tests if (sources / test).exists()]
        # A checkout's tests may want a package of another name than the one on PyPI, as Lightning's do.
        imported = [sources / "src"] if suite.name in chosen.checkout and (sources / "src").is_dir() else []
        yield Runner(suite, sources, tests, suite.arguments, logs, imported)


def differing(runner, theirs, ours):
    """Cases with other results, and those whose results vary with torch's loader alone."""
    differ = [case for case in {**theirs, **ours} if result(theirs, case) != result(ours, case)]
    if not differ:
        return [], []
    again = [runner.results("torch", differ) for _ in range(2)]
    unsteady = [case for case in differ if any(result(other, case) != result(theirs, case) for other in again)]
    return [case for case in differ if case not in unsteady], unsteady


def result(results, case):
    """What is compared: the outcome, and the values that a program recorded."""
    outcome, _, values = results.get(case, ("absent", "", []))
    return outcome, values


def counts(results):
    outcomes = [outcome for outcome, _, _ in results.values()]
    passed = sum(outcome in ("passed", "xpassed") for outcome in outcomes)
    skipped = sum(outcome in ("skipped", "xfailed") for outcome in outcomes)
    return passed, len(outcomes) - passed - skipped, skipped


def run(suite, chosen, logs):
    """Prints a suite's row and what differs; returns whether nothing differs without an explanation."""
    began = time.monotonic()
    version = importlib.metadata.version(suite.package)
    sums, lines, right = {loader: (0, 0, 0) for loader in LOADERS}, [], True
    number = 0
    for runner in runners(suite, version, chosen, logs):
        found = {loader: runner.results(loader) for loader in LOADERS}
        for loader in LOADERS:
            sums[loader] = tuple(map(sum, zip(sums[loader], counts(found[loader]))))
        differ, unsteady = differing(runner, *found.values())
        number += len(differ)
        for case in differ:
            reason = suite.reason(case)
            right = right and reason is not None
            lines += [f"  {'explained' if reason else 'DIFFERENT'}: {case}", *shown(case, *found.values()), *([f"    {reason}"] if reason else [])]
        lines += [f"  unsteady with torch's loader alone: {case}" for case in unsteady]
        for case in found["torch"]:
            if case.endswith("(import)"):
                right = right and suite.name in chosen.checkout  # versions of a checkout may not fit; ours are pinned
                lines.append(f"  not run, with either loader: {case}: {found['torch'][case][1].strip().splitlines()[-1][:200]}")
    if not sums["torch"][0]:
        right = False
        lines.append("  no case passed with torch's loader: see the log")
    cells = "".join(f"{value:>8}" for loader in LOADERS for value in sums[loader])
    print(f"{suite.name:<16} {version:<10}{cells}{number:>11}{time.monotonic() - began:>7.0f} s", *lines, sep="\n", flush=True)
    return right


def shown(case, theirs, ours):
    """Both results of a case, cut to a line each; of values those that differ."""
    (outcome, text, their_values), (our_outcome, our_text, our_values) = (results.get(case, ("absent", "", [])) for results in (theirs, ours))
    if outcome == our_outcome == "passed":
        pairs = [pair for pair in zip(their_values, our_values) if pair[0] != pair[1]]
        text, our_text = pairs[0] if pairs else (f"{len(their_values)} values", f"{len(our_values)} values")
    for loader, name, words in (LOADERS[0], outcome, text), (LOADERS[1], our_outcome, our_text):
        yield f"    {loader:<9} {name} {' / '.join(str(words).split(chr(10)))[:300]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--suites", default="", help="names, separated by commas (default: all)")
    parser.add_argument("--checkout", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--log", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "feedlane-frameworks")
    parser.add_argument("--downloads", type=pathlib.Path, required=True)
    chosen = parser.parse_args()
    chosen.checkout = {name: pathlib.Path(folder).resolve() for name, _, folder in (text.partition("=") for text in chosen.checkout)}
    wanted = [suite for suite in suites.SUITES if not chosen.suites or suite.name in chosen.suites.split(",")]
    for folder in chosen.log, chosen.downloads:
        folder.mkdir(parents=True, exist_ok=True)
    for log in chosen.log.glob("*.log"):
        log.unlink()
    print(f"torch {importlib.metadata.version('torch')}; logs of pytest in {chosen.log}")
    print(f"{'':<27}{'with torch.utils.data':>24}{'with feedlane':>24}")
    print(f"{'framework':<16} {'version':<10}" + f"{'passed':>8}{'failed':>8}{'skipped':>8}" * 2 + f"{'different':>11}{'time':>9}")
    right = [run(suite, chosen, chosen.log) for suite in wanted]
    print(f"{sum(right)} passed, {len(right) - sum(right)} failed")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
