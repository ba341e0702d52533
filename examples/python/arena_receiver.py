# SPDX-License-Identifier: Apache-2.0
"""Owns an arena and receives frames, which programs in any language send. Usage: arena_receiver.py PATH FRAMES"""
import itertools
import sys

import feedlane

with feedlane.Arena(1 << 20, path=sys.argv[1]) as arena:
    print("listening", flush=True)
    for batch in itertools.islice(arena.stream(), int(sys.argv[2])):
        frame = batch.data["frame"]
        print(f"{frame.shape[0]} x {frame.shape[1]}, row 1 begins with {frame[1, 0]:g}")
