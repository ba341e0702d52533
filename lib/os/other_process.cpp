// SPDX-License-Identifier: Apache-2.0
// Reads /proc/PID: a process's descriptors, and what it is doing.
#include "os/other_process.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include "os/memfd.hpp"
#include "os/process.hpp"

namespace feedlane::os {
namespace {

std::string folder_of(std::int64_t pid) { return "/proc/" + std::to_string(pid) + "/fd"; }

Status refuse_dead(std::int64_t pid, Error& error) {
  return error.refuse(FEEDLANE_E_PEER_DEAD, "pid", pid, 0, "process {} does not exist or has ended", pid);
}

// Whether this process or the system lacks a resource. Other errors concern the other process or its descriptor.
bool is_shortage(int reason) { return reason == EMFILE || reason == ENFILE || reason == ENOMEM; }

Status read_folder(std::int64_t pid, std::string_view prefix, std::vector<OpenFile>& out, Error& error) {
  const std::string folder = folder_of(pid);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), &::closedir);
  if (!entries) {
    const int reason = errno;
    if (reason == ENOENT || reason == ESRCH) return refuse_dead(pid, error);
    return error.os(reason, "reading the descriptors of process {}{}", pid,
                    reason == EACCES ? ", which must belong to the same user" : "");
  }
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(entries.get());
    if (entry == nullptr && is_shortage(errno)) return error.os(errno, "reading the descriptors of process {}", pid);
    if (entry == nullptr) break;
    if (entry->d_name[0] == '.') continue;
    char target[PATH_MAX];
    const ssize_t length = ::readlinkat(::dirfd(entries.get()), entry->d_name, target, sizeof target);
    if (length < 0 && is_shortage(errno))
      return error.os(errno, "reading descriptor {} of process {}", entry->d_name, pid);
    // length < 0: the descriptor was closed after readdir listed it.
    if (length <= 0) continue;
    const std::string_view name(target, static_cast<std::size_t>(length));
    if (name.starts_with(prefix)) out.push_back({std::atoi(entry->d_name), std::string(name)});
  }
  std::sort(out.begin(), out.end(), [](const OpenFile& a, const OpenFile& b) { return a.number < b.number; });
  return FEEDLANE_OK;
}

}  // namespace

Status list_open_files(std::int64_t pid, std::string_view prefix, std::vector<OpenFile>& out, Error& error) {
  if (pid <= 0) return error.refuse(FEEDLANE_E_ARGUMENT, "pid", pid, 1, "pid is {}: must be at least 1", pid);
  if (pid > INT_MAX) return refuse_dead(pid, error);
  Fd process;
  if (const Status s = open_pidfd(static_cast<pid_t>(pid), process, error); s != FEEDLANE_OK)
    // EINVAL: `pid` is the id of a thread that doesn't lead its process.
    return error.os_errno == ESRCH || error.os_errno == EINVAL ? refuse_dead(pid, error) : s;
  out.clear();
  const Status s = read_folder(pid, prefix, out, error);
  // A process that has ended but wasn't reaped has no descriptors, or they can't be read.
  return has_ended(process.get()) ? refuse_dead(pid, error) : s;
}

Status open_again(std::int64_t pid, int number, Fd& out, Error& error) {
  const std::string path = folder_of(pid) + "/" + std::to_string(number);
  // The file may be of any kind: opening a FIFO must not wait, and a terminal must not become this process's
  // controlling terminal.
  Fd opened(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!opened && is_shortage(errno)) return error.os(errno, "opening descriptor {} of process {}", number, pid);
  struct statfs system {};
  if (get_seals(opened.get()) < 0 || ::fstatfs(opened.get(), &system) != 0 || system.f_type == HUGETLBFS_MAGIC)
    opened.reset();
  out = std::move(opened);
  return FEEDLANE_OK;
}

std::int64_t run_delay_ns(std::int64_t thread) {
  if (thread <= 0) return -1;
  const Fd file(::open(("/proc/" + std::to_string(thread) + "/schedstat").c_str(), O_RDONLY | O_CLOEXEC));
  char text[96] = {};
  if (!file || ::read(file.get(), text, sizeof text - 1) <= 0) return -1;
  unsigned long long ran = 0;
  long long waited = 0;
  // A kernel that does not count reports "0 0 0".
  return std::sscanf(text, "%llu %lld", &ran, &waited) == 2 && ran != 0 ? waited : -1;
}

bool is_exiting(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");  // "PID (NAME) STATE PPID PGRP SESSION TTY TPGID FLAGS"
  std::string stat;
  if (!std::getline(file, stat, '\0') || stat.rfind(')') == std::string::npos) return true;
  std::istringstream words(stat.substr(stat.rfind(')') + 1));
  std::string word;
  for (int i = 0; i < 6; i++) words >> word;
  unsigned long flags = 0;
  constexpr unsigned long exiting = 4;  // PF_EXITING
  return !(words >> flags) || (flags & exiting) != 0;
}

std::string describe_process(std::int64_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/";
  std::string text;
  std::ifstream status(folder + "status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("State:")) text = "state" + line.substr(6);
  if (text.empty()) return "gone";
  std::ifstream wait(folder + "wchan");
  std::string place;
  if (wait >> place && place != "0") text += ", waits in " + place;
  std::ifstream stack(folder + "stack");  // readable by root alone
  int frames = 0;
  for (std::string line; frames < 4 && std::getline(stack, line); frames++)
    text += (frames == 0 ? ", stack " : " < ") + line.substr(line.find(' ') + 1);
  std::replace(text.begin(), text.end(), '\t', ' ');
  return text;
}

}  // namespace feedlane::os
