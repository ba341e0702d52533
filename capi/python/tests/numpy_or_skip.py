# SPDX-License-Identifier: Apache-2.0
"""numpy as np. Where there is none, importing this ends the test as skipped."""
import sys

try:
    import numpy as np  # noqa: F401
except ModuleNotFoundError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
