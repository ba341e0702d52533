# SPDX-License-Identifier: Apache-2.0
"""DataLoader where the runtime can't run: torch's own. Imports nothing of the compiled module."""
from __future__ import annotations

import importlib.metadata
import warnings
from typing import Any

try:
    VERSION = importlib.metadata.version("feedlane")
except importlib.metadata.PackageNotFoundError:  # a source tree
    VERSION = "0"

# The arguments that feedlane.DataLoader has beyond torch's.
OURS = ("held", "slot_bytes", "task_timeout", "max_restarts", "allow_pickle", "snapshot_every_n_steps", "name", "trace", "progress")


def data_loader(reason: str) -> type:
    """torch's DataLoader as a class that takes our arguments and ignores them. Warns with the reason."""
    import torch.utils.data

    class DataLoader(torch.utils.data.DataLoader[Any]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{key: value for key, value in kwargs.items() if key not in OURS})

    DataLoader.__qualname__ = "DataLoader"
    globals()["DataLoader"] = DataLoader  # where pickle looks for it
    warnings.warn(f"feedlane.DataLoader is torch.utils.data.DataLoader, because feedlane can't run here: {reason}", RuntimeWarning,
                  stacklevel=3)
    return DataLoader
