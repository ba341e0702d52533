# SPDX-License-Identifier: Apache-2.0
"""Puts feedlane.DataLoader in the place of torch's as soon as torch is imported, in each process whose PYTHONPATH names this
folder and whose environment has FRAMEWORKS_LOADER=feedlane. Without that variable it does nothing."""
import importlib.abc
import importlib.util
import os
import sys


class _Swapped(importlib.abc.Loader):
    """Imports torch by torch's own import loader, then replaces the data loader."""

    def __init__(self, inner):
        self.inner = inner

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        self.inner.exec_module(module)
        import torch.utils.data
        import torch.utils.data.dataloader

        import feedlane
        torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = feedlane.DataLoader


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch once, for the import that comes first."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Swapped(spec.loader)
        return spec


if os.environ.get("FRAMEWORKS_LOADER") == "feedlane":
    sys.meta_path.insert(0, _Finder())
