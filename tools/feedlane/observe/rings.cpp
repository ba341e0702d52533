// SPDX-License-Identifier: Apache-2.0
// Finds the rings of this user's processes, and which processes hold the same one.
#include "rings.hpp"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

namespace observe {
namespace {

using FileId = std::pair<dev_t, ino_t>;

std::int32_t read_ring(std::int64_t pid, int nth, feedlane_ring_info& out, feedlane::Error& error) {
  feedlane_init(&out, sizeof out);
  feedlane_error said{};
  feedlane_init(&said, sizeof said);
  const std::int32_t status = feedlane_monitor_ring(pid, nth, &out, &said);
  if (status < 0) error = feedlane::Error(said);
  return status;
}

// The control segments of a process's rings, each once, in the order of its descriptors: that of the library.
std::vector<FileId> ring_files(std::int64_t pid) {
  constexpr const char* target = "/memfd:feedlane-ring-control (deleted)";
  std::vector<std::pair<int, FileId>> found;
  std::error_code failure;
  for (std::filesystem::directory_iterator entry(fmt::format("/proc/{}/fd", pid), failure), end;
       !failure && entry != end; entry.increment(failure)) {
    std::error_code gone;
    struct stat about {};
    if (std::filesystem::read_symlink(entry->path(), gone) != target || ::stat(entry->path().c_str(), &about) != 0)
      continue;
    found.push_back({std::atoi(entry->path().filename().c_str()), {about.st_dev, about.st_ino}});
  }
  std::sort(found.begin(), found.end());
  std::vector<FileId> files;
  for (const auto& [number, file] : found)
    if (std::find(files.begin(), files.end(), file) == files.end()) files.push_back(file);
  return files;
}

// 0: there is none, or it is in another PID namespace.
std::int64_t parent_of(std::int64_t pid) {
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(stat, line);
  // "17 (name) S 16 ...": the name may contain any character.
  std::istringstream words(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  char state = 0;
  std::int64_t parent = 0;
  words >> state >> parent;
  return parent;
}

bool is_ancestor(std::int64_t ancestor, std::int64_t pid) {
  for (int depth = 0; pid > 1 && depth < 1000; depth++) {  // a process that ends meanwhile gets another parent
    pid = parent_of(pid);
    if (pid == ancestor) return true;
  }
  return false;
}

struct Held {
  Ring ring;
  std::optional<FileId> file;
};

void add_rings_of(std::int64_t pid, std::vector<Held>& all, std::vector<Unreadable>& unreadable) {
  const std::vector<FileId> files = ring_files(pid);
  for (std::size_t nth = 0;; nth++) {
    Ring ring{pid, static_cast<int>(nth), {}, {}, {}};
    feedlane::Error error;
    const std::int32_t status = read_ring(pid, ring.nth, ring.before, error);
    const bool is_told =
        is_shortage(error) && std::any_of(unreadable.begin(), unreadable.end(),
                                          [&](const Unreadable& u) { return u.pid == pid && is_shortage(u.error); });
    if (is_unreadable(error) && !is_told) unreadable.push_back({pid, program_of(pid), error});
    if (status == FEEDLANE_E_ABI || status == FEEDLANE_E_CORRUPT) continue;  // says nothing of the next one
    if (status != FEEDLANE_OK) return;
    ring.program = program_of(pid);
    ring.after = ring.before;
    all.push_back({std::move(ring), nth < files.size() ? std::optional(files[nth]) : std::nullopt});
  }
}

}  // namespace

std::vector<Ring> find_rings(std::vector<Unreadable>& unreadable) {
  std::vector<Held> all;
  for (const std::int64_t pid : processes()) add_rings_of(pid, all, unreadable);
  std::vector<Ring> kept;
  for (const Held& held : all) {
    const bool is_inherited = held.file && std::any_of(all.begin(), all.end(), [&](const Held& other) {
                                return other.file == held.file && other.ring.pid != held.ring.pid &&
                                       is_ancestor(other.ring.pid, held.ring.pid);
                              });
    if (!is_inherited) kept.push_back(held.ring);
  }
  return kept;
}

void read_again(Ring& ring) {
  feedlane_ring_info now{};
  feedlane::Error ignored;
  if (read_ring(ring.pid, ring.nth, now, ignored) != FEEDLANE_OK) return;
  const feedlane_ring_info& then = ring.before;
  // Another one, created meanwhile, may have its number.
  const bool is_same = now.message_bytes == then.message_bytes && now.capacity == then.capacity &&
                       now.lanes == then.lanes && now.received >= then.received;
  if (is_same) ring.after = now;
}

}  // namespace observe
