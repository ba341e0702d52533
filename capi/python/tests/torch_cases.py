# SPDX-License-Identifier: Apache-2.0
"""Runs torch's own cases of its DataLoader with feedlane.DataLoader in its place. They are test/test_dataloader.py of torch's source,
of the release that is installed; they need pytest, pytest-timeout, expecttest and psutil. Of 2.6, test_segfault is an unexpected
success, twice: torch's own loader doesn't name the signal there.
Usage: torch_cases.py test_dataloader.py [pytest's arguments]"""
import os
import sys

import torch.utils.data

import feedlane

torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = feedlane.DataLoader
# Spawned workers import this file too, and need what the cases import.
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")))

if __name__ == "__main__":
    import pytest
    sys.exit(pytest.main(["-p", "no:cacheprovider", "--timeout", "200", *sys.argv[1:]]))
