# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that writes a line of JSON when a case starts and when it ends, so that the results of a run that is killed are
kept, and the case that ended it is known.

Options: --record FILE; --left-out FILE and --only FILE name a file with a node id per line: cases not to run, and the only ones."""
import json
import pathlib

import pytest


def pytest_addoption(parser):
    for option in "--record", "--left-out", "--only":
        parser.addoption(option, type=pathlib.Path)


def pytest_configure(config):
    config.pluginmanager.register(Recorder(config.getoption("--record")), "frameworks-recorder")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    def named(option):
        return set(config.getoption(option).read_text(encoding="utf-8").splitlines())
    removed = []
    if config.getoption("--left-out"):
        left_out = named("--left-out")
        removed += [item for item in items if item.nodeid in left_out]
    if config.getoption("--only"):
        only = named("--only")
        removed += [item for item in items if item.nodeid not in only]
    gone = set(removed)
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=list(gone))


class Recorder:
    def __init__(self, path):
        self._file = open(path, "a", encoding="utf-8")

    def _write(self, **entry):
        print(json.dumps(entry), file=self._file, flush=True)

    def pytest_runtest_logstart(self, nodeid):
        self._write(started=nodeid)

    def pytest_runtest_logreport(self, report):
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if outcome == "skipped" else "xpassed"
        if report.when == "call" or outcome != "passed":
            self._write(case=report.nodeid, outcome=outcome, text=_last_line(report) if outcome == "failed" else "",
                        values=[value for name, value in report.user_properties if name == "value"])

    def pytest_runtest_logfinish(self, nodeid):
        self._write(ended=nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            self._write(case=f"{report.nodeid} (import)", outcome="failed", text=_last_line(report), values=[])

    def pytest_sessionfinish(self):
        self._write(finished=True)


def _last_line(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return text.strip()[:2000]
