// SPDX-License-Identifier: Apache-2.0
// Limits of memory and processors. Memory limits are checked before memory is reserved: beyond RLIMIT_FSIZE a reservation
// raises SIGXFSZ, beyond a cgroup's limit it starts the OOM killer, beyond RLIMIT_AS the mapping fails after the reservation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace feedlane::os {

// Roots of the system's files. Tests use others.
struct SystemFiles {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
  std::string huge_pages = "/sys/kernel/mm/transparent_hugepage";
  std::string processors = "/sys/devices/system/cpu";
  std::string nodes = "/sys/devices/system/node";
};

// Bytes available under one limit, and the limit's name.
struct Room {
  std::string limit;
  std::uint64_t bytes;
};

// MemAvailable, and every memory cgroup from this process's up to the root, each with what is left under it (version 2: under
// memory.max or memory.high). Page cache that the kernel can drop counts as available.
std::vector<Room> memory_room(const SystemFiles& files);

// Processes of this process's memory cgroup that the out-of-memory killer has ended, -1: unknown.
std::int64_t oom_kills(const SystemFiles& files);

// Whether segments of these sizes can be created and mapped, with `reserved` bytes of memory. E_MEMORY or E_LIMIT with what
// was requested and what is available.
Status check_memory(const std::vector<std::uint64_t>& segment_bytes, std::uint64_t reserved, const SystemFiles& files,
                    Error& error);
// E_MEMORY if `bytes` more of memory are not available.
Status check_room(std::uint64_t bytes, const SystemFiles& files, Error& error);

// Whether this process can open so many descriptors more, all of them above 2. E_LIMIT: found and needed, and the limit that would
// do.
Status check_descriptors(std::uint64_t needed, Error& error);

// Memory that this process has locked (mlock): what RLIMIT_MEMLOCK bounds.
std::uint64_t locked_bytes(const SystemFiles& files);

// Number of processors that this process may use: the smaller of its affinity and the CPU quota of its cgroups. At least 1.
int usable_cpus(const SystemFiles& files);

}  // namespace feedlane::os
