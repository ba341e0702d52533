# SPDX-License-Identifier: Apache-2.0
"""The library loaded by dlopen into a process that has libstdc++ already in a scope of its own, as Python has it with numpy:
what libstdc++ allocates for it must be freed by the same allocator. Usage: dlopen_test.py LIBFEEDLANE"""
import ctypes as c
import subprocess
import sys


def make_a_loader(path):
    c.CDLL("libstdc++.so.6", mode=c.RTLD_LOCAL)
    library = c.CDLL(path, mode=c.RTLD_LOCAL)
    sampler, loader = c.c_void_p(), c.c_void_p()
    order = (c.c_uint64 * 3)()  # feedlane_sampler_config, sequential
    order[0], order[2] = c.sizeof(order), 1000
    library.feedlane_sampler_create(c.byref(order), c.byref(sampler), None)
    config = (c.c_uint64 * 32)()  # feedlane_loader_config, by its offsets
    config[0], config[1] = c.sizeof(config), sampler.value
    config[5] = 4  # batch_size
    config[13] = 1 | 3 << 32  # one worker, to be started by somebody else
    config[28] = 1 << 20  # slot_bytes
    # Looks at /proc/meminfo with libstdc++'s streams.
    status = library.feedlane_loader_create(c.byref(config), c.byref(loader), None)
    library.feedlane_loader_destroy(c.byref(loader))
    library.feedlane_sampler_destroy(c.byref(sampler))
    return status


def main():
    path = sys.argv[1]
    if sys.argv[2:] == ["child"]:
        return make_a_loader(path) != 0
    status = subprocess.run([sys.executable, "-B", __file__, path, "child"], timeout=60).returncode
    if status != 0:
        print(f"a loader in a process with a libstdc++ of its own ended with {status}")
    return status != 0


if __name__ == "__main__":
    sys.exit(main())
