// SPDX-License-Identifier: Apache-2.0
// Reads /proc: processes, the names of their descriptors, and what they run.
#include "survey.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string_view>

#include "descriptor.hpp"
#include "words.hpp"

namespace observe {
namespace {

// A pass over a descriptor takes about a microsecond. A process that nobody has named gets milliseconds.
constexpr std::size_t most_descriptors = std::size_t{1} << 14;
constexpr std::size_t most_of_chosen = std::size_t{1} << 20;
// Loaders or rings of one process, and those times descriptors: what opening all of them reads.
constexpr std::size_t most_segments = 64;
constexpr std::size_t most_segments_of_chosen = 256;
constexpr std::size_t most_reads = std::size_t{1} << 16;
constexpr std::size_t most_reads_of_chosen = std::size_t{1} << 22;

// What a memfd of the library is named, as far as it is counted here.
constexpr std::string_view loader_target = "/memfd:feedlane-control (deleted)";
constexpr std::string_view ring_target = "/memfd:feedlane-ring-control (deleted)";
constexpr std::string_view arena_target = "/memfd:feedlane-arena-control (deleted)";

struct Named {
  int number;
  FileId file;
};

// Each file once, by its first descriptor.
std::vector<FileId> in_order(std::vector<Named> named) {
  std::sort(named.begin(), named.end(), [](const Named& a, const Named& b) { return a.number < b.number; });
  std::vector<FileId> files;
  std::set<FileId> seen;
  for (const Named& n : named)
    if (seen.insert(n.file).second) files.push_back(n.file);
  return files;
}

std::string beginning_of(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t length = file.get() < 0 ? 0 : ::read(file.get(), text, sizeof text);
  return {text, static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
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

std::vector<std::int64_t> ancestors_of(std::int64_t pid) {
  std::vector<std::int64_t> all;
  while (pid > 1 && all.size() < 1000)
    all.push_back(pid = parent_of(pid));  // one that ends meanwhile gets another parent
  return all;
}

}  // namespace

std::vector<bool> inherited(const std::vector<Holder>& holders) {
  std::map<FileId, std::vector<std::int64_t>> by_file;
  for (const Holder& h : holders)
    if (h.file) by_file[*h.file].push_back(h.pid);
  std::vector<bool> all;
  std::pair<std::int64_t, std::vector<std::int64_t>> ancestors;  // of the newest process
  for (const Holder& h : holders) {
    all.push_back(false);
    if (!h.file || by_file[*h.file].size() < 2) continue;
    if (ancestors.first != h.pid) ancestors = {h.pid, ancestors_of(h.pid)};
    const std::vector<std::int64_t>& same = by_file[*h.file];
    all.back() = std::any_of(ancestors.second.begin(), ancestors.second.end(), [&](std::int64_t ancestor) {
      return std::binary_search(same.begin(), same.end(), ancestor);
    });
  }
  return all;
}

std::vector<Process> processes() {
  std::vector<Process> all;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), &::closedir);
  if (!folder) {
    say("cannot list the processes in /proc: {}", std::strerror(errno));
    return all;
  }
  const uid_t user = ::geteuid();
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(folder.get());
    if (entry == nullptr && errno != 0) say("cannot list all processes in /proc: {}", std::strerror(errno));
    if (entry == nullptr) break;
    std::int64_t pid = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    const auto [stop, failure] = std::from_chars(entry->d_name, end, pid);
    if (failure != std::errc{} || stop != end || pid == ::getpid()) continue;
    struct stat about {};
    if (::fstatat(::dirfd(folder.get()), entry->d_name, &about, 0) != 0) continue;  // it has ended
    if (user == 0 || about.st_uid == user) all.push_back({pid, about.st_uid});
  }
  std::sort(all.begin(), all.end(), [](const Process& a, const Process& b) { return a.pid < b.pid; });
  return all;
}

feedlane::Error limit_error(const std::string& text) {
  feedlane_error error{};
  feedlane_init(&error, sizeof error);
  error.code = FEEDLANE_E_LIMIT;
  std::snprintf(error.text, sizeof error.text, "%s", text.c_str());
  return feedlane::Error(error);
}

Survey survey(std::int64_t pid, bool is_chosen) {
  Survey found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(fmt::format("/proc/{}/fd", pid).c_str()), &::closedir);
  if (!folder) return found;
  found.is_known = true;
  const std::size_t most = is_chosen ? most_of_chosen : most_descriptors;
  std::vector<Named> loaders;
  std::vector<Named> rings;
  std::vector<Named> arenas;
  std::size_t descriptors = 0;
  const std::size_t segments_at_most = is_chosen ? most_segments_of_chosen : most_segments;
  while (const dirent* entry = ::readdir(folder.get())) {
    if (++descriptors > most || loaders.size() + rings.size() + arenas.size() > 8 * segments_at_most) {
      found.refusal = limit_error(
          descriptors > most ? fmt::format("skipped: it has more than {} descriptors", most)
                             : fmt::format("skipped: it has more than {} descriptors of loaders, rings and arenas",
                                           8 * segments_at_most));
      return found;
    }
    char target[64];
    const ssize_t length = ::readlinkat(::dirfd(folder.get()), entry->d_name, target, sizeof target);
    const std::string_view name(target, static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
    struct stat about {};
    if ((name != loader_target && name != ring_target && name != arena_target) ||
        ::fstatat(::dirfd(folder.get()), entry->d_name, &about, 0) != 0)
      continue;
    (name == loader_target ? loaders
     : name == ring_target ? rings
                           : arenas)
        .push_back({std::atoi(entry->d_name), {about.st_dev, about.st_ino}});
  }
  found.loaders = in_order(std::move(loaders));
  found.rings = in_order(std::move(rings));
  found.arenas = in_order(std::move(arenas));
  const std::size_t segments = std::max({found.loaders.size(), found.rings.size(), found.arenas.size()});
  if (segments > segments_at_most || segments * descriptors > (is_chosen ? most_reads_of_chosen : most_reads))
    found.refusal = limit_error(fmt::format(
        "skipped: its {} descriptors include those of {} loaders, {} rings and {} arenas, more than a trainer has",
        descriptors, found.loaders.size(), found.rings.size(), found.arenas.size()));
  return found;
}

std::int64_t pid_as_it_sees_itself(std::int64_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("NSpid:")) return std::atoll(line.c_str() + line.find_last_of(" \t") + 1);
  return pid;
}

std::string program_of(std::int64_t pid, std::size_t most) {
  const std::string folder = fmt::format("/proc/{}/", pid);
  std::string line = beginning_of(folder + "cmdline");
  while (!line.empty() && line.back() == '\0') line.pop_back();
  std::replace(line.begin(), line.end(), '\0', ' ');
  if (line.empty()) {  // a process that has ended, or of the kernel
    line = beginning_of(folder + "comm");
    while (!line.empty() && line.back() == '\n') line.pop_back();
    line = "[" + line + "]";
  }
  return shortened(printable(line), most);
}

}  // namespace observe
