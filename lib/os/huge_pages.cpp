// SPDX-License-Identifier: Apache-2.0
// Reads the system's settings for huge pages of shared memory, and fills mappings with them.
#include "os/huge_pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace feedlane::os {

namespace {

// The word in brackets: "never" of "always within_size advise [never] deny force". Empty: there is no such file.
std::string chosen(const std::string& path) {
  std::ifstream file(path);
  for (std::string word; file >> word;)
    if (word.size() > 2 && word.front() == '[' && word.back() == ']') return word.substr(1, word.size() - 2);
  return {};
}

bool gives_some(const std::string& word) { return !word.empty() && word != "never" && word != "deny"; }

}  // namespace

std::uint64_t huge_page_bytes(const SystemFiles& files) {
  // Kernels before 5.14 can't populate memory through a mapping; an empty range is enough to find out.
  if (::madvise(nullptr, 0, MADV_POPULATE_WRITE) != 0) return 0;
  const std::string rule = chosen(files.huge_pages + "/shmem_enabled");
  std::ifstream size(files.huge_pages + "/hpage_pmd_size");
  std::uint64_t bytes = 0;
  if (rule.empty() || !(size >> bytes)) return 0;
  // Kernels from 6.11 on also have a setting for each size.
  const std::string of_size =
      chosen(files.huge_pages + "/hugepages-" + std::to_string(bytes / 1024) + "kB/shmem_enabled");
  const bool inherits = of_size.empty() || of_size == "inherit" || rule == "deny" || rule == "force";
  return gives_some(inherits ? rule : of_size) ? bytes : 0;
}

void fill_with_huge_pages(void* mapping, std::uint64_t bytes, std::uint64_t page, const SystemFiles& files) {
  auto* const begin = static_cast<std::byte*>(mapping);
  const std::uint64_t pages = bytes / page;
  if (pages == 0 || ::madvise(begin, pages * page, MADV_HUGEPAGE) != 0) return;
  // Populating clears the memory, as fast as one processor writes. A thread is worth its cost for some milliseconds of that.
  constexpr std::uint64_t worth_a_thread = std::uint64_t{16} << 20;
  const std::uint64_t most = std::min({std::uint64_t{8}, pages, static_cast<std::uint64_t>(usable_cpus(files))});
  const std::uint64_t threads = std::clamp<std::uint64_t>(pages * page / worth_a_thread, 1, most);
  const std::uint64_t step = std::max<std::uint64_t>(1, worth_a_thread / page);
  const auto fill = [&](std::uint64_t part) {
    const std::uint64_t from = pages * part / threads;
    const std::uint64_t until = pages * (part + 1) / threads;
    for (std::uint64_t at = from; at < until; at += step)  // a pending signal waits for the end of a call
      (void)::madvise(begin + at * page, std::min(step, until - at) * page, MADV_POPULATE_WRITE);
  };
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  (void)::pthread_sigmask(SIG_BLOCK, &all, &before);  // signals must go to the host's threads
  std::vector<std::thread> others;
  std::uint64_t part = 1;
  try {
    others.reserve(threads);
    for (; part < threads; part++) others.emplace_back(fill, part);
  } catch (const std::system_error&) {  // no more threads: the later reservation fills the rest with small pages
  } catch (const std::bad_alloc&) {
  }
  (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  fill(0);
  for (std::thread& t : others) t.join();
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
