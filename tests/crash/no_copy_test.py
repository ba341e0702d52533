# SPDX-License-Identifier: Apache-2.0
"""The trainer's tensor and the worker's are the same bytes of the same memfd: a byte changed through a third mapping is
seen in the tensor."""
# promise: loader-no-copy
import glob
import mmap
import os

from program import Program


def data_mapping(pid, address):
    """(inode, offset in the file) of an address in a process."""
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            span, _, offset, _, inode, *name = line.split()
            low, high = (int(x, 16) for x in span.split("-"))
            if low <= address < high:
                assert name and "feedlane-data" in name[0], line
                return int(inode), int(offset, 16) + address - low
    raise AssertionError(f"address {address:#x} is not mapped in {pid}")


program = Program("show")
worker = int(program.value("worker"))
trainer_address = int(program.value("trainer_address"))
worker_address = int(program.value("worker_address"))
offset = int(program.value("offset"))
first = int(program.value("byte"))

inode, in_trainer = data_mapping(program.process.pid, trainer_address)
inode_of_worker, in_worker = data_mapping(worker, worker_address)
assert inode == inode_of_worker, "two different files"
assert in_trainer == in_worker == offset, (in_trainer, in_worker, offset)

for link in glob.glob(f"/proc/{program.process.pid}/fd/*"):
    if "memfd:feedlane-data" in os.readlink(link):
        with open(link, "r+b") as file, mmap.mmap(file.fileno(), 0) as third:
            assert third[offset] == first
            third[offset] = first ^ 0xA5
        break
else:
    raise AssertionError("the trainer has no data segment open")
program.process.stdin.write(b"\n")
program.process.stdin.flush()
seen = int(program.value("byte"))
assert seen == first ^ 0xA5, (seen, first)
assert program.end() == 0
print(f"offset {offset} of inode {inode} in trainer, worker and a third mapping")
