// SPDX-License-Identifier: Apache-2.0
// Sets of processors and memory nodes, through system calls: libnuma would be a dependency for two calls only.
#include "os/placement.hpp"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <fstream>

namespace feedlane::os {
namespace {

constexpr std::uint32_t bits = 8 * sizeof(unsigned long);

// Reads the number at the front of `text` and removes it.
bool take_number(std::string_view& text, std::uint32_t& number) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || number >= NumberSet::end) return false;
  text.remove_prefix(static_cast<std::size_t>(read.ptr - text.data()));
  return true;
}

bool take(std::string_view& text, char c) {
  if (text.empty() || text.front() != c) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

bool NumberSet::read(std::string_view list) {
  NumberSet found;
  do {
    std::uint32_t first = 0;
    if (!take_number(list, first)) return false;
    std::uint32_t last = first;
    if (take(list, '-') && !take_number(list, last)) return false;
    if (last < first) return false;
    for (std::uint32_t number = first; number <= last; number++) found.add(number);
  } while (take(list, ','));
  if (!list.empty()) return false;
  *this = std::move(found);
  return true;
}

void NumberSet::add(std::uint32_t number) {
  if (words_.size() <= number / bits) words_.resize(number / bits + 1);
  words_[number / bits] |= 1UL << number % bits;
}

bool NumberSet::has(std::uint32_t number) const {
  return number / bits < words_.size() && (words_[number / bits] >> number % bits & 1) != 0;
}

std::uint32_t NumberSet::count() const {
  std::uint32_t sum = 0;
  for (const unsigned long word : words_) sum += static_cast<std::uint32_t>(std::popcount(word));
  return sum;
}

std::uint32_t NumberSet::last() const {
  if (words_.empty()) return 0;
  return static_cast<std::uint32_t>(words_.size() * bits) - 1 -
         static_cast<std::uint32_t>(std::countl_zero(words_.back()));
}

std::vector<std::uint32_t> NumberSet::numbers() const {
  std::vector<std::uint32_t> all;
  for (std::uint32_t number = 0; number < words_.size() * bits; number++)
    if (has(number)) all.push_back(number);
  return all;
}

NumberSet read_set(const std::string& path) {
  std::ifstream file(path);
  std::string list;
  NumberSet set;
  if (std::getline(file, list)) (void)set.read(list);
  return set;
}

NumberSet allowed_nodes(const SystemFiles& files) {
  std::ifstream file(files.proc + "/self/status");
  NumberSet set;
  constexpr std::string_view name = "Mems_allowed_list:\t";
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name)) (void)set.read(std::string_view(line).substr(name.size()));
  return set;
}

namespace {

// Bytes that a node has left; UINT64_MAX: unknown.
std::uint64_t room_of(std::uint32_t node, const SystemFiles& files) {
  std::ifstream file(files.nodes + "/node" + std::to_string(node) + "/meminfo");
  std::uint64_t bytes = 0;
  bool any = false;
  for (std::string line; std::getline(file, line);) {
    char name[32];
    std::uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "Node %*u %31[^:]: %" SCNu64, name, &kib) != 2) continue;
    const std::string_view is = name;
    if (is == "MemFree" || is == "Active(file)" || is == "Inactive(file)" || is == "SReclaimable") bytes += kib * 1024;
    any = any || is == "MemFree";
  }
  return any ? bytes : UINT64_MAX;
}

}  // namespace

Status check_room_of_nodes(const NumberSet& nodes, std::uint64_t bytes, const SystemFiles& files, Error& error) {
  const std::uint64_t each = bytes / std::max(nodes.count(), 1U);
  const std::uint64_t needed = each + each / 16;
  for (const std::uint32_t node : nodes.numbers())
    if (const std::uint64_t room = room_of(node, files); room < needed)
      return error.refuse(FEEDLANE_E_MEMORY, "config.memory_nodes", room, needed,
                          "memory node {} has only {} bytes free, but {} bytes are needed there, its share of {}", node,
                          room, needed, bytes);
  return FEEDLANE_OK;
}

Status bind_memory(void* mapping, std::uint64_t bytes, const NumberSet& nodes, Error& error) {
  const int policy = nodes.count() == 1 ? MPOL_BIND : MPOL_INTERLEAVE;
  // The kernel reads one bit less than maxnode, the fifth argument.
  if (::syscall(SYS_mbind, mapping, bytes, policy, nodes.words(), 8 * nodes.bytes() + 1, 0) == 0) return FEEDLANE_OK;
  const int reason = errno;
  return error.os(reason, "mbind of {} bytes to {} memory nodes (the highest: {}){}", bytes, nodes.count(),
                  nodes.last(), reason == EPERM ? "; containers may forbid it without CAP_SYS_NICE" : "");
}

int run_on(const NumberSet& cpus) {
  return ::syscall(SYS_sched_setaffinity, 0, cpus.bytes(), cpus.words()) == 0 ? 0 : errno;
}

}  // namespace feedlane::os
