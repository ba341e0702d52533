// SPDX-License-Identifier: Apache-2.0
// Placement of threads on processors, and of memory on memory nodes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "os/limits.hpp"

namespace feedlane::os {

// A set of numbers below `end`, as the bit mask that sched_setaffinity and mbind take.
class NumberSet {
 public:
  static constexpr std::uint32_t end = 8192;  // the most processors that a Linux system has

  // Reads the kernel's list format: numbers and ranges, "0-3,8". For other text it returns false and leaves the set
  // unchanged.
  bool read(std::string_view list);

  [[nodiscard]] bool is_empty() const { return words_.empty(); }
  [[nodiscard]] bool has(std::uint32_t number) const;
  [[nodiscard]] std::uint32_t count() const;
  [[nodiscard]] std::uint32_t last() const;  // 0 if it is empty
  [[nodiscard]] const unsigned long* words() const { return words_.data(); }
  [[nodiscard]] std::size_t bytes() const { return words_.size() * sizeof(unsigned long); }
  [[nodiscard]] std::vector<std::uint32_t> numbers() const;

 private:
  void add(std::uint32_t number);

  std::vector<unsigned long> words_;  // the last one isn't zero
};

// Reads the set in a file of the system. Empty if there is no such file.
NumberSet read_set(const std::string& path);

// The memory nodes that the cpuset of this process allows; empty if unknown.
NumberSet allowed_nodes(const SystemFiles& files);

// Checks that each of these nodes has room for an equal part of `bytes`, plus a sixteenth, because the kernel keeps
// some memory. Page cache that the kernel can drop counts as room. A node that doesn't report its memory is
// assumed to have enough. E_MEMORY.
Status check_room_of_nodes(const NumberSet& nodes, std::uint64_t bytes, const SystemFiles& files, Error& error);

// Binds a mapping of shared memory, for all processes that map it: from now on its memory comes from the given node, or
// in turn from the given nodes. Memory that is already populated stays where it is. If a single node is full, the
// kernel kills processes (OOM). If several nodes are given and are full, it takes memory from other nodes.
Status bind_memory(void* mapping, std::uint64_t bytes, const NumberSet& nodes, Error& error);

// Restricts this thread, and the threads and processes that it starts, to these processors. Makes only a system call,
// because a child between vfork and exec calls it. Returns 0, or errno.
int run_on(const NumberSet& cpus);

}  // namespace feedlane::os
