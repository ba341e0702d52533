// SPDX-License-Identifier: Apache-2.0
// Reads files of /proc and /sys, limits and cgroups.
#include "doctor_system.hpp"

#include <dirent.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <memory>
#include <sstream>

namespace observe {

// ---- files ----

std::optional<std::string> line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

std::string words_after(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name)) {
      const std::size_t at = line.find_first_not_of(" \t", name.size());
      return at == std::string::npos ? "" : line.substr(at);
    }
  return {};
}

std::optional<std::uint64_t> number_after(const std::string& path, std::string_view name) {
  std::istringstream words(words_after(path, name));
  std::uint64_t number = 0;
  if (!(words >> number)) return std::nullopt;
  return number;
}

std::string chosen_word(const std::string& path) {
  std::ifstream file(path);
  for (std::string word; file >> word;)
    if (word.size() > 2 && word.front() == '[' && word.back() == ']') return word.substr(1, word.size() - 2);
  return {};
}

namespace {

// Calls `visit(name)` for each entry of a folder.
template <class F>
void for_each_entry(const std::string& folder, F&& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), &::closedir);
  if (!entries) return;
  while (const dirent* entry = ::readdir(entries.get()))
    if (entry->d_name[0] != '.') visit(std::string(entry->d_name));
}

bool is_number(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

std::uint64_t entries_of(const std::string& folder) {
  std::uint64_t count = 0;
  for_each_entry(folder, [&](const std::string&) { count++; });
  return count;
}

// ---- limits ----

Limit limit_of(const System& system, std::string_view name) {
  std::istringstream words(words_after(system.of_process("limits"), name));
  const auto read = [&words] {
    std::string word;
    std::uint64_t number = unlimited;
    if (words >> word) (void)std::from_chars(word.data(), word.data() + word.size(), number);  // or "unlimited"
    return number;
  };
  const std::uint64_t soft = read();
  return {soft, read()};
}

bool has_capability(const System& system, int number) {
  const std::string word = words_after(system.of_process("status"), "CapEff:");
  std::uint64_t mask = 0;
  (void)std::from_chars(word.data(), word.data() + word.size(), mask, 16);
  return (mask >> number & 1) != 0;
}

std::uint64_t threads_of_user(const System& system) {
  const auto user = number_after(system.of_process("status"), "Uid:");
  std::uint64_t threads = 0;
  for_each_entry(system.root + "/proc", [&](const std::string& name) {
    const std::string status = system.proc(name + "/status");
    if (is_number(name) && number_after(status, "Uid:") == user)
      threads += number_after(status, "Threads:").value_or(0);
  });
  return threads;
}

// ---- cgroups ----

namespace {

// Whether `name` is an element of a list separated by commas.
bool is_in(const std::string& list, const std::string& name) {
  return ("," + list + ",").find("," + name + ",") != std::string::npos;
}

// Calls `visit(folder, group, is_version2)` for the process's cgroup in the hierarchy of `controller` and for each of its
// ancestors, in each version.
template <class F>
void for_each_group(const System& system, const std::string& controller, F&& visit) {
  std::ifstream file(system.of_process("cgroup"));
  for (std::string line; std::getline(file, line);) {  // "id:controllers:/path"
    std::istringstream parts(line);
    std::string id;
    std::string controllers;
    std::string path;
    std::getline(parts, id, ':');
    std::getline(parts, controllers, ':');
    std::getline(parts, path);
    const bool is_version2 = controllers.empty();
    if (path.empty() || path[0] != '/' || (!is_version2 && !is_in(controllers, controller))) continue;
    const std::string mount = is_version2 ? system.cgroups() : system.cgroups() + "/" + controller;
    while (path.size() > 1) {
      visit(mount + path, path, is_version2);
      path.resize(std::max<std::size_t>(path.rfind('/'), 1));  // the parent of "/a" is "/"
    }
    visit(mount, std::string("/"), is_version2);
  }
}

// Version 1 has a number near 2^63 where there is no limit.
bool is_limit(std::uint64_t number) { return number < std::uint64_t{1} << 62; }

// The tighter of two limits.
void take_tighter(std::optional<GroupLimit>& tightest, const GroupLimit& other) {
  if (!tightest || other.left() < tightest->left()) tightest = other;
}

std::uint64_t file_cache(const std::string& folder, const std::string& prefix) {
  const std::string path = folder + "/memory.stat";
  return number_after(path, prefix + "inactive_file ").value_or(0) +
         number_after(path, prefix + "active_file ").value_or(0);
}

}  // namespace

std::optional<GroupLimit> memory_limit(const System& system) {
  std::optional<GroupLimit> tightest;
  for_each_group(system, "memory", [&](const std::string& folder, const std::string& group, bool is_version2) {
    const auto used = number_in(folder + (is_version2 ? "/memory.current" : "/memory.usage_in_bytes"));
    std::uint64_t limit =
        number_in(folder + (is_version2 ? "/memory.max" : "/memory.limit_in_bytes")).value_or(unlimited);
    // Beyond memory.high processes are slowed down until memory was given back.
    if (is_version2) limit = std::min(limit, number_in(folder + "/memory.high").value_or(unlimited));
    if (!used || !is_limit(limit)) return;
    const std::uint64_t cache = file_cache(folder, is_version2 ? "" : "total_");
    take_tighter(tightest, {group, limit, *used - std::min(*used, cache)});
  });
  return tightest;
}

std::optional<GroupLimit> task_limit(const System& system) {
  std::optional<GroupLimit> tightest;
  for_each_group(system, "pids", [&](const std::string& folder, const std::string& group, bool) {
    const auto limit = number_in(folder + "/pids.max");
    const auto used = number_in(folder + "/pids.current");
    if (limit && used) take_tighter(tightest, {group, *limit, *used});
  });
  return tightest;
}

std::uint64_t killed_for_memory(const System& system) {
  std::uint64_t most = 0;  // an ancestor's number includes its descendants' in version 2 only
  for_each_group(system, "memory", [&](const std::string& folder, const std::string& group, bool is_version2) {
    if (group == "/") return;  // the whole machine's
    const std::string path = folder + (is_version2 ? "/memory.events" : "/memory.oom_control");
    most = std::max(most, number_after(path, "oom_kill ").value_or(0));
  });
  return most;
}

std::optional<Quota> processor_quota(const System& system) {
  std::optional<Quota> smallest;
  for_each_group(system, "cpu", [&](const std::string& folder, const std::string& group, bool is_version2) {
    double quota = 0;
    double period = 0;
    if (is_version2) {
      std::ifstream file(folder + "/cpu.max");  // "max 100000", or quota and period
      if (!(file >> quota >> period)) return;
    } else {  // the quota is -1 where there is none
      std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
      std::ifstream period_file(folder + "/cpu.cfs_period_us");
      if (!(quota_file >> quota) || !(period_file >> period)) return;
    }
    if (quota <= 0 || period <= 0) return;
    if (!smallest || quota / period < smallest->processors) smallest = Quota{group, quota / period};
  });
  return smallest;
}

std::uint64_t throttled_ns(const System& system) {
  std::uint64_t most = 0;
  for_each_group(system, "cpu", [&](const std::string& folder, const std::string&, bool is_version2) {
    const std::string path = folder + "/cpu.stat";
    const std::uint64_t time = is_version2 ? number_after(path, "throttled_usec ").value_or(0) * 1000
                                           : number_after(path, "throttled_time ").value_or(0);
    most = std::max(most, time);
  });
  return most;
}

int allowed_processors(std::int64_t pid) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(static_cast<pid_t>(pid), sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

// ---- processes ----

ProcessState state_of(std::int64_t pid) {
  ProcessState found;
  const std::string folder = "/proc/" + std::to_string(pid) + "/";
  const auto stat = line_of(folder + "stat");
  // The name before the state is in parentheses and may contain any character.
  const std::size_t at = stat ? stat->rfind(')') : std::string::npos;
  if (at == std::string::npos || at + 2 >= stat->size()) return found;
  found.state = (*stat)[at + 2];
  found.tracer = static_cast<std::int64_t>(number_after(folder + "status", "TracerPid:").value_or(0));
  const auto wait = line_of(folder + "wchan");
  if (wait && *wait != "0") found.wait = *wait;
  return found;
}

const char* state_words(char state) {
  switch (state) {
    case 0: return "has ended";
    case 'R': return "running";
    case 'S': return "sleeping";
    case 'D': return "in uninterruptible sleep";
    case 'T': return "stopped";
    case 't': return "stopped by a tracer";
    case 'Z': return "a zombie";
    case 'X': return "dead";
    default: return "in another state";
  }
}

namespace {

std::string namespace_of(const std::string& process, const char* kind) {
  char target[64];
  const ssize_t length = ::readlink(("/proc/" + process + "/ns/" + kind).c_str(), target, sizeof target);
  return length > 0 ? std::string(target, static_cast<std::size_t>(length)) : std::string();
}

}  // namespace

ProcessNumbers::ProcessNumbers(std::int64_t trainer) {
  const std::string theirs = namespace_of(std::to_string(trainer), "pid");
  are_same_ = theirs.empty() || theirs == namespace_of("self", "pid");
  if (are_same_) return;
  for_each_entry("/proc", [&](const std::string& name) {
    if (!is_number(name) || namespace_of(name, "pid") != theirs) return;
    // "NSpid: 4711 17": its number here, and in each namespace down to its own.
    const std::string numbers = words_after("/proc/" + name + "/status", "NSpid:");
    const std::size_t at = numbers.find_last_of(" \t");
    const std::string own = numbers.substr(at == std::string::npos ? 0 : at + 1);
    if (is_number(own)) numbers_.emplace(std::stoll(own), std::stoll(name));
  });
}

std::int64_t ProcessNumbers::here(std::int64_t pid) const {
  if (are_same_) return std::max<std::int64_t>(pid, 0);
  const auto found = numbers_.find(pid);
  return found == numbers_.end() ? 0 : found->second;
}

bool runs_python(std::int64_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  char path[4096];
  const ssize_t length = ::readlink((folder + "/exe").c_str(), path, sizeof path);
  const std::string program = length > 0 ? std::string(path, static_cast<std::size_t>(length)) : std::string();
  if (program.find("/python", program.find_last_of('/')) != std::string::npos) return true;
  std::ifstream maps(folder + "/maps");  // another program with an embedded interpreter
  for (std::string line; std::getline(maps, line);)
    if (line.find("/libpython") != std::string::npos) return true;
  return false;
}

std::string stack_command(std::int64_t pid, char state) {
  const std::string number = std::to_string(pid);
  const bool is_root = ::geteuid() == 0;
  const char* const as_root = is_root ? "" : "sudo ";
  // A process in uninterruptible sleep doesn't answer a tracer. Its stack in the kernel is for root alone.
  if (state == 'D') return as_root + ("cat /proc/" + number + "/stack");
  const bool is_restricted = number_in("/proc/sys/kernel/yama/ptrace_scope").value_or(0) != 0;
  const std::string prefix = is_restricted ? as_root : "";
  if (runs_python(pid)) return prefix + "py-spy dump --pid " + number;
  return prefix + "gdb -p " + number + " -batch -ex 'thread apply all bt'";
}

}  // namespace observe
