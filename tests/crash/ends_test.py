# SPDX-License-Identifier: Apache-2.0
"""After every end of a loader that its trainer lives to see, nothing is left: no child, no descriptor, no mapping."""
# promise: end-leaves-nothing
from program import Program

for mode in ("normal", "break", "exception", "error"):
    program = Program(mode)
    if mode == "exception":
        assert program.line() == "caught"
    if mode == "error":
        assert program.line() == "error 40: sample 40 is broken"
    left = program.line()
    assert left == "left descriptors 0 mappings 0 children 0", f"{mode}: {left}"
    assert program.end() == 0, mode
    print(f"{mode}: nothing left")
