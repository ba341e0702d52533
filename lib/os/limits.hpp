// SPDX-License-Identifier: Apache-2.0
// What memory there is, looked at before any is reserved: beyond RLIMIT_FSIZE a reservation raises SIGXFSZ, beyond a
// cgroup's limit it wakes the OOM killer, beyond RLIMIT_AS the mapping fails when the memory is already taken.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace feedlane::os {

// Where the system's accounts are read. Others than the real roots are for tests.
struct SystemFiles {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
  std::string huge_pages = "/sys/kernel/mm/transparent_hugepage";
};

// Bytes that could be had under one limit, and the limit's name.
struct Room {
  std::string limit;
  std::uint64_t bytes;
};

// MemAvailable and every memory cgroup from this process's up to the root, each with what is left under it (version 2: under
// memory.max or memory.high). Page cache that the kernel would drop counts as left.
std::vector<Room> memory_room(const SystemFiles& files);

// Whether segments of these sizes can be made and mapped, `reserved` bytes of them as memory. E_MEMORY or E_LIMIT with what
// was asked for and what there is.
Status check_memory(const std::vector<std::uint64_t>& segment_bytes, std::uint64_t reserved, const SystemFiles& files,
                    Error& error);
// Whether `bytes` more of memory can be had. E_MEMORY.
Status check_room(std::uint64_t bytes, const SystemFiles& files, Error& error);

// Memory that this process has locked (mlock): what RLIMIT_MEMLOCK bounds.
std::uint64_t locked_bytes(const SystemFiles& files);

// Processors that this process may use: its affinity, and the CPU quota of its cgroups, whichever is less. At least 1.
int usable_cpus(const SystemFiles& files);

}  // namespace feedlane::os
