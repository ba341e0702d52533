# SPDX-License-Identifier: Apache-2.0
"""Runs torchdata's own cases of its StatefulDataLoader with feedlane.DataLoader in its place. They are test/stateful_dataloader of
torchdata's source, of the release that is installed; they need pytest, pytest-timeout, parameterized, expecttest and psutil.
Usage: torchdata_cases.py test_state_dict.py [pytest's arguments]"""
import os
import sys

import torchdata.stateful_dataloader

import feedlane

torchdata.stateful_dataloader.StatefulDataLoader = feedlane.DataLoader
# Spawned workers import this file too, and need what the cases import.
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")))

if __name__ == "__main__":
    import pytest
    sys.exit(pytest.main(["-p", "no:cacheprovider", "--timeout", "200", *sys.argv[1:]]))
