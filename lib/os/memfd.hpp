// SPDX-License-Identifier: Apache-2.0
// Anonymous shared memory (memfd). It isn't limited by the size of /dev/shm, has no path, and is freed with its last
// descriptor and mapping.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "os/fd.hpp"

namespace feedlane::os {

// Creates a memfd of `bytes` bytes, all holes. It can be sealed and, from Linux 6.3 on, can't become executable. `name`
// appears in /proc/PID/maps.
Status create_memfd(const char* name, std::uint64_t bytes, Fd& out, Error& error);

// Allocates memory for [offset, offset + bytes), in chunks, so that later writes can't raise SIGBUS. Signals to this
// thread wait until a chunk is allocated.
Status reserve(int fd, std::uint64_t offset, std::uint64_t bytes, Error& error);

// Adds seals, and O_APPEND for all holders of this descriptor. With F_SEAL_GROW every write(2) through it then fails,
// because it would append. So only mappings can change the memory, whatever number the descriptor gets and whichever
// code prints to it.
Status add_seals(int fd, int seals, Error& error);

// The seals of `fd`, or -1 if it is not a memfd.
int get_seals(int fd);

Status file_size(int fd, std::uint64_t& bytes, Error& error);

// Identifies the file of a descriptor (st_dev, st_ino). Two files that are open have different ids.
struct FileId {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  auto operator<=>(const FileId&) const = default;
};
Status file_id(int fd, FileId& out, Error& error);

// After this, the file of `fd` can't be opened for writing through /proc. Only its owner and root can change that, by
// fchmod.
Status forbid_opening_for_writing(int fd, Error& error);
// Whether the file's mode now allows opening it for writing. A change that was reverted is not detected.
bool may_be_opened_for_writing(int fd);
// Opens the memory of `fd` again, for reading only: no mapping of the new descriptor can be made writable.
Status open_for_reading(int fd, Fd& out, Error& error);

// The offset of the first hole at or after `offset`; after an error, `offset`. Pages that are allocated but were never
// written may count as a hole.
std::uint64_t first_hole(int fd, std::uint64_t offset);
// The offset of the first data at or after `offset`; `end` if there is no data, or after an error.
std::uint64_t first_data(int fd, std::uint64_t offset, std::uint64_t end);

// Punches a hole at [offset, offset + bytes): the memory goes back to the system, and later reads return zeros. E_OS,
// with EPERM if a seal forbids it.
Status give_back(int fd, std::uint64_t offset, std::uint64_t bytes, Error& error);

}  // namespace feedlane::os
