// SPDX-License-Identifier: Apache-2.0
// Anonymous shared memory: not bound by the size of /dev/shm, no name to leave behind, gone with its last process.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "os/fd.hpp"

namespace feedlane::os {

// A memfd of `bytes`, all of them holes, that can still be sealed. `name` shows in /proc/PID/maps.
Status create_memfd(const char* name, std::uint64_t bytes, Fd& out, Error& error);

// Makes [offset, offset + bytes) real memory, in chunks, so that a later write can't raise SIGBUS. Signals to this
// thread wait for the end of a chunk.
Status reserve(int fd, std::uint64_t offset, std::uint64_t bytes, Error& error);

Status add_seals(int fd, int seals, Error& error);

// The seals of `fd`, or -1 if it is no memfd.
int get_seals(int fd);

Status file_size(int fd, std::uint64_t& bytes, Error& error);

// Which file a descriptor is of, in the kernel's words: no two that are open at the same time have the same.
struct FileId {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  bool operator==(const FileId&) const = default;
};
Status file_id(int fd, FileId& out, Error& error);

// Takes [offset, offset + bytes) out of a memfd: memory goes back to the system, later reads give zeros. E_OS, with EPERM
// where a seal forbids it.
Status give_back(int fd, std::uint64_t offset, std::uint64_t bytes, Error& error);

}  // namespace feedlane::os
