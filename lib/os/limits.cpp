// SPDX-License-Identifier: Apache-2.0
// Reads the limits on memory and processors from /proc, cgroups and rlimits.
#include "os/limits.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <optional>
#include <sstream>
#include <string_view>

namespace feedlane::os {
namespace {

// The number in a file; nothing if there is no such file, or if it contains no number ("max").
std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::optional<std::uint64_t> number(0);
  if (!(file >> *number)) number.reset();
  return number;
}

// The sum of the numbers in lines "NAME NUMBER" with one of two names.
std::uint64_t sum_of(const std::string& path, std::string_view first, std::string_view second) {
  std::ifstream file(path);
  std::uint64_t sum = 0;
  std::uint64_t number = 0;
  for (std::string name; file >> name >> number;)
    if (name == first || name == second) sum += number;
  return sum;
}

// The number in a line "NAME:  NUMBER kB", in bytes.
std::optional<std::uint64_t> read_kib(const std::string& path, std::string_view wanted) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t kib = 0;
    if (words >> name >> kib && name == wanted) return kib * 1024;
  }
  return std::nullopt;
}

struct CgroupFiles {
  const char* limit;
  const char* throttle;  // limit beyond which processes are slowed down; nullptr: version 1 has none
  const char* usage;
  const char* cache[2];  // in memory.stat
};
constexpr CgroupFiles version2{"/memory.max", "/memory.high", "/memory.current", {"inactive_file", "active_file"}};
constexpr CgroupFiles version1{
    "/memory.limit_in_bytes", nullptr, "/memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};

// Adds the bytes left under the limit of one cgroup, if it has a limit.
void add_room(const std::string& folder, const std::string& path, const CgroupFiles& names, std::vector<Room>& out) {
  constexpr std::uint64_t none = UINT64_MAX;
  std::uint64_t limit = read_number(folder + names.limit).value_or(none);
  if (names.throttle != nullptr) limit = std::min(limit, read_number(folder + names.throttle).value_or(none));
  const auto usage = read_number(folder + names.usage);
  if (limit == none || !usage) return;
  const std::uint64_t cache = sum_of(folder + "/memory.stat", names.cache[0], names.cache[1]);
  const std::uint64_t used = *usage - std::min(*usage, cache);
  out.push_back({"the memory limit of cgroup " + (path.empty() ? "/" : path), limit - std::min(limit, used)});
}

// Whether `name` is an element of a comma-separated list.
bool is_in(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    if (list.substr(0, end) == name) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

// Calls `visit(mount, path, is_version2)` for this process's cgroup in the hierarchy of `controller`, once for each
// cgroup version.
template <class F>
void for_each_cgroup(const SystemFiles& files, std::string_view controller, F&& visit) {
  std::ifstream file(files.proc + "/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "id:controllers:/path"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos || second + 1 >= line.size()) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (path[0] != '/') continue;
    if (controllers.empty()) visit(files.cgroup, path, true);
    else if (is_in(controllers, controller))
      visit(std::string(files.cgroup).append(1, '/').append(controller), path, false);
  }
}

// Visits `path`, its parent, and so on up to "/", which is passed as "".
template <class F>
void for_each_ancestor(std::string path, F&& visit) {
  for (;;) {
    visit(path == "/" ? std::string() : path);
    if (path.size() <= 1) return;
    path.resize(std::max<std::size_t>(path.rfind('/'), 1));  // the parent of "/a" is "/"
  }
}

}  // namespace

std::vector<Room> memory_room(const SystemFiles& files) {
  std::vector<Room> rooms;
  if (const auto available = read_kib(files.proc + "/meminfo", "MemAvailable:"))
    rooms.push_back({"MemAvailable", *available});
  for_each_cgroup(files, "memory", [&](const std::string& mount, const std::string& path, bool is_version2) {
    for_each_ancestor(
        path, [&](const std::string& at) { add_room(mount + at, at, is_version2 ? version2 : version1, rooms); });
  });
  return rooms;
}

// Counts in the nearest ancestor whose file is visible. In a container, with or without a cgroup namespace, that is the
// container's own cgroup.
std::int64_t oom_kills(const SystemFiles& files) {
  std::int64_t kills = -1;
  for_each_cgroup(files, "memory", [&](const std::string& mount, const std::string& path, bool is_version2) {
    for_each_ancestor(path, [&](const std::string& at) {
      std::ifstream file(mount + at + (is_version2 ? "/memory.events" : "/memory.oom_control"));
      std::int64_t number = 0;
      for (std::string name; kills < 0 && file >> name >> number;)
        if (name == "oom_kill") kills = number;
    });
  });
  return kills;
}

namespace {

std::uint64_t address_space_in_use(const std::string& proc) {
  const auto pages = read_number(proc + "/self/statm");
  return pages ? *pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

std::int64_t to_int(std::uint64_t number) {
  return static_cast<std::int64_t>(std::min<std::uint64_t>(number, INT64_MAX));
}

}  // namespace

Status check_memory(const std::vector<std::uint64_t>& segment_bytes, std::uint64_t reserved, const SystemFiles& files,
                    Error& error) {
  const std::uint64_t largest = *std::max_element(segment_bytes.begin(), segment_bytes.end());
  const std::uint64_t total = std::accumulate(segment_bytes.begin(), segment_bytes.end(), std::uint64_t{0});
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && largest > limit.rlim_cur)
    return error.refuse(FEEDLANE_E_LIMIT, "RLIMIT_FSIZE", to_int(limit.rlim_cur), to_int(largest),
                        "RLIMIT_FSIZE is {} bytes, but a shared-memory segment needs {}: raise it (ulimit -f)",
                        limit.rlim_cur, largest);
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const std::uint64_t left =
        limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, address_space_in_use(files.proc));
    if (total > left)
      return error.refuse(
          FEEDLANE_E_LIMIT, "RLIMIT_AS", to_int(left), to_int(total),
          "RLIMIT_AS leaves {} bytes of address space, but the shared memory needs {}: raise it (ulimit -v)", left,
          total);
  }
  return check_room(reserved, files, error);
}

Status check_room(std::uint64_t bytes, const SystemFiles& files, Error& error) {
  for (const Room& room : memory_room(files))
    if (bytes > room.bytes)
      return error.refuse(FEEDLANE_E_MEMORY, "arena", to_int(room.bytes), to_int(bytes),
                          "the shared memory needs {} bytes, but {} leaves only {}", bytes, room.limit, room.bytes);
  return FEEDLANE_OK;
}

// Tests each number, because /proc may not be mounted and reading it needs a descriptor.
Status check_descriptors(std::uint64_t needed, Error& error) {
  constexpr std::uint64_t first = 3;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return FEEDLANE_OK;
  std::uint64_t left = 0;
  for (std::uint64_t number = first; left < needed && number < limit.rlim_cur; number++)
    left += ::fcntl(static_cast<int>(number), F_GETFD) < 0 ? 1 : 0;
  if (left >= needed) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_LIMIT, "RLIMIT_NOFILE", to_int(left), to_int(needed),
                      "RLIMIT_NOFILE is {} and leaves {} descriptors, but the workers need {}: raise it to {} (ulimit "
                      "-n), or configure fewer workers",
                      limit.rlim_cur, left, needed, std::max<std::uint64_t>(limit.rlim_cur, first) + needed - left);
}

std::uint64_t locked_bytes(const SystemFiles& files) {
  return read_kib(files.proc + "/self/status", "VmLck:").value_or(0);
}

int usable_cpus(const SystemFiles& files) {
  cpu_set_t set;
  CPU_ZERO(&set);
  double cpus = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                              : static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
  const auto limit_to = [&](double quota, double period) {
    if (quota > 0 && period > 0) cpus = std::min(cpus, quota / period);
  };
  for_each_cgroup(files, "cpu", [&](const std::string& mount, const std::string& path, bool is_version2) {
    for_each_ancestor(path, [&](const std::string& at) {
      double quota = 0;
      double period = 0;
      if (is_version2) {
        std::ifstream file(mount + at + "/cpu.max");  // "max 100000" or "quota period"
        if (file >> quota >> period) limit_to(quota, period);
      } else {
        std::ifstream quota_file(mount + at + "/cpu.cfs_quota_us");
        std::ifstream period_file(mount + at + "/cpu.cfs_period_us");
        if (quota_file >> quota && period_file >> period) limit_to(quota, period);
      }
    });
  });
  return std::max(1, static_cast<int>(cpus));
}

}  // namespace feedlane::os
