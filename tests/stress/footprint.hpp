// SPDX-License-Identifier: Apache-2.0
// What a trainer has of the system, so that a long run can tell that it doesn't grow.
#pragma once

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "shared.hpp"

namespace stress {

struct Footprint {
  std::uint64_t resident_kib = 0, descriptors = 0, mappings = 0;
};

inline Footprint footprint() {
  Footprint f;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) f.resident_kib = std::stoull(line.substr(6));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) f.mappings += line.find("feedlane-") != std::string::npos ? 1 : 0;
  if (DIR* folder = ::opendir("/proc/self/fd")) {
    while (::readdir(folder) != nullptr) f.descriptors++;
    (void)::closedir(folder);
  }
  return f;
}

// Memory in this process's memfds, each counted once, however many descriptors it has.
inline std::uint64_t shared_kib() {
  std::uint64_t blocks = 0;
  std::set<ino_t> seen;
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) die("opendir", static_cast<std::uint64_t>(errno), 0);
  while (const dirent* entry = ::readdir(folder)) {
    char target[64] = {};
    struct stat s {};
    if (::readlinkat(::dirfd(folder), entry->d_name, target, sizeof target - 1) > 0 &&
        std::string(target).find("memfd:feedlane") != std::string::npos && ::fstat(std::atoi(entry->d_name), &s) == 0 &&
        seen.insert(s.st_ino).second)
      blocks += static_cast<std::uint64_t>(s.st_blocks);
  }
  (void)::closedir(folder);
  return blocks / 2;
}

inline void check_growth(const Footprint& before, const Footprint& now, const Footprint& slack) {
  const auto compare = [](const char* what, std::uint64_t was, std::uint64_t is, std::uint64_t more) {
    if (is > was + more) die(what, is, was);
  };
  compare("descriptors", before.descriptors, now.descriptors, slack.descriptors);
  compare("mappings", before.mappings, now.mappings, slack.mappings);
  compare("resident KiB", before.resident_kib, now.resident_kib, slack.resident_kib);
}

}  // namespace stress
