# SPDX-License-Identifier: Apache-2.0
"""What the library and the examples compute, written once more for their tests: torch's order, the seeds of rows, FNV-1a."""
import random
import struct

U64 = 2**64 - 1
FNV_START = 0xCBF29CE484222325


def torch_generator(seed):
    """mt19937, seeded as Python itself never does it."""
    state = [seed & 0xFFFFFFFF]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
    generator = random.Random()
    generator.setstate((3, (*state, 624), None))
    return generator


def torch_base_seed(seed):
    """What DataLoader draws at its first epoch after torch.manual_seed(seed)."""
    generator = torch_generator(seed)
    return ((generator.getrandbits(32) << 32) | generator.getrandbits(32)) & (U64 >> 1)


def torch_randperm(n, seed):
    """torch.randperm(n) on CPU: Fisher-Yates by remainder over mt19937."""
    generator = torch_generator(seed)
    order = list(range(n))
    for i in range(n - 1):
        j = i + generator.getrandbits(32) % (n - i)
        order[i], order[j] = order[j], order[i]
    return order


def scatter(x):
    """SplitMix64's output function."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & U64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & U64
    return x ^ (x >> 31)


def row_seed(base, epoch, position):
    """feedlane_row_seed: a SplitMix64 stream for each epoch."""
    gamma = 0x9E3779B97F4A7C15
    key = scatter((scatter((base + gamma) & U64) + epoch * gamma) & U64)
    return scatter((key + (position + 1) * gamma) & U64)


def fnv1a(value, data):
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & U64
    return value


def worker_checksum(base=7):
    """What examples/c/trainer prints, of all bytes of three epochs, if its loader's seed, which seeds the rows, is `base`."""
    value = FNV_START
    for epoch in range(3):
        order = torch_randperm(1000, 7 + epoch)
        for first in range(0, 1000, 32):
            x, label = b"", b""
            for position in range(first, min(first + 32, 1000)):
                index, shift = order[position], row_seed(base, epoch, position) % 5
                x += struct.pack("=64f", *((index + i + shift) % 17 / 16 for i in range(64)))
                label += struct.pack("=q", index % 10)
            value = fnv1a(value, x + label)
    return f"checksum: {value:016x}\n"
