// SPDX-License-Identifier: Apache-2.0
// Limits on memory and processors. Memory limits are checked before memory is reserved. Beyond RLIMIT_FSIZE a
// reservation raises SIGXFSZ; beyond a cgroup's limit it triggers the OOM killer; beyond RLIMIT_AS the mapping fails
// after the reservation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace feedlane::os {

// Directories of the system's files. Tests use other directories.
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

// The room under MemAvailable, and under the limit of each memory cgroup from this process's cgroup up to the root
// (version 2: memory.max or memory.high). Page cache that the kernel can drop counts as available.
std::vector<Room> memory_room(const SystemFiles& files);

// Number of processes in this process's memory cgroup that the OOM killer has killed; -1: unknown.
std::int64_t oom_kills(const SystemFiles& files);

// Checks that segments of these sizes can be created and mapped, with `reserved` bytes of memory. E_MEMORY or E_LIMIT,
// with the bytes requested and the bytes available.
Status check_memory(const std::vector<std::uint64_t>& segment_bytes, std::uint64_t reserved, const SystemFiles& files,
                    Error& error);
// E_MEMORY unless `bytes` more bytes of memory are available.
Status check_room(std::uint64_t bytes, const SystemFiles& files, Error& error);

// Checks that this process can open `needed` more descriptors, all above 2. E_LIMIT with the numbers found and needed;
// the text names a sufficient limit.
Status check_descriptors(std::uint64_t needed, Error& error);

// Memory that this process has locked (mlock), which RLIMIT_MEMLOCK limits.
std::uint64_t locked_bytes(const SystemFiles& files);

// Number of processors that this process may use: limited by its affinity and by the CPU quotas of its cgroups. At
// least 1.
int usable_cpus(const SystemFiles& files);

}  // namespace feedlane::os
