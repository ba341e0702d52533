// SPDX-License-Identifier: Apache-2.0
// Reads the system's settings for huge pages of shared memory, and fills mappings with them.
#include "os/huge_pages.hpp"

#include <sys/mman.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>

#include "os/populate.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace feedlane::os {

namespace {

// The word in brackets: "never" for "always within_size advise [never] deny force". Empty if there is no such file.
std::string chosen(const std::string& path) {
  std::ifstream file(path);
  for (std::string word; file >> word;)
    if (word.size() > 2 && word.front() == '[' && word.back() == ']') return word.substr(1, word.size() - 2);
  return {};
}

bool gives_some(const std::string& word) { return !word.empty() && word != "never" && word != "deny"; }

}  // namespace

std::uint64_t huge_page_bytes(const SystemFiles& files) {
  // Kernels before 5.14 can't populate memory through a mapping. A call with an empty range shows this.
  if (::madvise(nullptr, 0, MADV_POPULATE_WRITE) != 0) return 0;
  const std::string rule = chosen(files.huge_pages + "/shmem_enabled");
  std::ifstream size(files.huge_pages + "/hpage_pmd_size");
  std::uint64_t bytes = 0;
  if (rule.empty() || !(size >> bytes)) return 0;
  // From 6.11 on kernels also have a setting for each size.
  const std::string of_size =
      chosen(files.huge_pages + "/hugepages-" + std::to_string(bytes / 1024) + "kB/shmem_enabled");
  const bool inherits = of_size.empty() || of_size == "inherit" || rule == "deny" || rule == "force";
  return gives_some(inherits ? rule : of_size) ? bytes : 0;
}

void fill_with_huge_pages(void* mapping, std::uint64_t bytes, std::uint64_t page, const SystemFiles& files) {
  const std::uint64_t whole = bytes / page * page;
  if (whole != 0 && ::madvise(mapping, whole, MADV_HUGEPAGE) == 0) populate(mapping, {{0, whole}}, page, files);
}

std::uint64_t huge_bytes(const void* mapping, const SystemFiles& files) {
  std::ifstream file(files.proc + "/self/smaps");
  bool is_there = false;
  for (std::string line; std::getline(file, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    std::uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
      if (is_there) return 0;
      is_there = begin == reinterpret_cast<std::uintptr_t>(mapping);
    } else if (is_there && std::sscanf(line.c_str(), "ShmemPmdMapped: %" SCNu64 " kB", &kib) == 1) {
      return kib * 1024;
    }
  }
  return 0;
}

}  // namespace feedlane::os
