# SPDX-License-Identifier: Apache-2.0
"""The feedlane command as a contender, and the form of a group's figures, for the scripts of this folder."""
import json
import os
import pathlib
import subprocess
import sys

BUILT = pathlib.Path(__file__).resolve().parents[2] / "build/tools/feedlane/feedlane"


class Feedlane:
    def __init__(self, path):
        self.path = path

    def bench(self, group, *arguments):
        """What `feedlane bench` says of one round, without pinning."""
        command = [self.path, "bench", group, *map(str, arguments), "--no-pin", "--rounds", "1", "--json"]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

    def rate(self, size, workers, prefetch):
        said = self.bench("handoff", "--bytes", size, "--workers", workers, "--prefetch", prefetch, "--quick",
                          "--rate-only")
        return said["groups"]["handoff"]["rows"][0]["batches_s"]["median"]

    def start(self, workers):
        rows = self.bench("startup", "--workers", workers)["groups"]["startup"]["rows"]
        row = next(row for row in rows if row["mode"] == "fork")
        return [row["first_batch_ms"]["median"], row["epoch_restart_us"]["median"] / 1e3, row["shutdown_ms"]["median"]]


def find_feedlane(named):
    for path in filter(None, (named, os.environ.get("FEEDLANE"), BUILT)):
        if os.access(path, os.X_OK):
            return Feedlane(str(path))
    sys.exit("no feedlane command; build it (option `command`) or name it with --feedlane")


class Group:
    """Rows for the tables, ratios for the record, as `feedlane bench` has them."""

    def __init__(self):
        self.rows, self.ratios = [], {}
