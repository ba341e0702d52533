// SPDX-License-Identifier: Apache-2.0
// Where processes run and where memory lies: sets of processors and of memory nodes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "os/limits.hpp"

namespace feedlane::os {

// Numbers below `end`, a bit each, as sched_setaffinity and mbind take them.
class NumberSet {
 public:
  static constexpr std::uint32_t end = 8192;  // processors of a Linux system, at most

  // Reads the kernel's list format: numbers and ranges, "0-3,8". False, with the set unchanged: it is something else.
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

// The set in a file of the system's; empty if there is no such file.
NumberSet read_set(const std::string& path);

// The memory nodes that the cpuset of this process allows; empty if the system does not say.
NumberSet allowed_nodes(const SystemFiles& files);

// Whether these nodes have `bytes` left, in equal parts, with a sixteenth more for what the kernel keeps. Page cache that it can drop
// counts. E_MEMORY. A node that does not say has enough.
Status check_room_of_nodes(const NumberSet& nodes, std::uint64_t bytes, const SystemFiles& files, Error& error);

// Memory of a mapping of shared memory comes from these nodes from now on, for all processes that map it: from one that is named
// alone, in turn from several. What is populated already stays where it is. When a node that is named alone has no more, the kernel
// ends processes; of several that are full it takes from others.
Status bind_memory(void* mapping, std::uint64_t bytes, const NumberSet& nodes, Error& error);

// This thread, and what it starts, run on these processors. Only a system call: a child between vfork and exec calls it. Returns 0,
// or errno.
int run_on(const NumberSet& cpus);

}  // namespace feedlane::os
