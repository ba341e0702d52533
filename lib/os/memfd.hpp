// SPDX-License-Identifier: Apache-2.0
// Anonymous shared memory (memfd): not limited by the size of /dev/shm, without a name, freed with its last descriptor and
// mapping.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "os/fd.hpp"

namespace feedlane::os {

// A memfd of `bytes`, all of them holes, that can still be sealed; never executable, from Linux 6.3. `name` shows in /proc/PID/maps.
Status create_memfd(const char* name, std::uint64_t bytes, Fd& out, Error& error);

// Allocates memory for [offset, offset + bytes), in chunks, so that a later write can't raise SIGBUS. Signals to this thread
// wait for the end of a chunk.
Status reserve(int fd, std::uint64_t offset, std::uint64_t bytes, Error& error);

// With F_SEAL_GROW no write(2) changes the memory any more, in any process that has got this descriptor, because it appends:
// memory changes by mappings alone, whatever number the descriptor gets and whoever prints to it.
Status add_seals(int fd, int seals, Error& error);

// The seals of `fd`, or -1 if it is no memfd.
int get_seals(int fd);

Status file_size(int fd, std::uint64_t& bytes, Error& error);

// Identifies the file of a descriptor (st_dev, st_ino): no two open files have the same id.
struct FileId {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  auto operator<=>(const FileId&) const = default;
};
Status file_id(int fd, FileId& out, Error& error);

// From here on `fd` can't be opened for writing again, by /proc: only its user and root can change that, by fchmod.
Status forbid_opening_for_writing(int fd, Error& error);
// Whether its mode allows it now. Who changed it and put it back is not found.
bool may_be_opened_for_writing(int fd);
// The same memory, opened for reading only: no mapping by this descriptor can be made writable.
Status open_for_reading(int fd, Fd& out, Error& error);

// Punches a hole at [offset, offset + bytes): the memory goes back to the system, later reads return zeros. E_OS, with EPERM
// if a seal forbids it.
Status give_back(int fd, std::uint64_t offset, std::uint64_t bytes, Error& error);

}  // namespace feedlane::os
