// SPDX-License-Identifier: Apache-2.0
#include "os/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace feedlane::os {

Status open_pidfd(pid_t pid, Fd& out, Error& error) {
  out.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return out ? FEEDLANE_OK : error.os(errno, "pidfd_open of process %d", static_cast<int>(pid));
}

pid_t pid_of_pidfd(int pidfd) {
  char path[64];
  (void)std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "re"), &std::fclose);
  if (!file) return 0;
  char line[128];
  int pid = 0;
  while (std::fgets(line, sizeof line, file.get()) != nullptr)
    if (std::sscanf(line, "Pid: %d", &pid) == 1) return pid > 0 ? pid : 0;
  return 0;
}

bool has_ended(int pidfd) {
  pollfd entry{pidfd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

void send_signal(int pidfd, int signal) { (void)::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0); }

void send_signal_to_group(pid_t leader, int signal) { (void)::kill(-leader, signal); }

Ending reap(int pidfd) {
  siginfo_t info{};
  if (::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG) != 0 ||
      info.si_pid == 0)
    return {};
  return {true, info.si_code != CLD_EXITED, info.si_status};
}

namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const std::string& s : strings) result.push_back(const_cast<char*>(s.c_str()));  // exec doesn't write through it
  result.push_back(nullptr);
  return result;
}

}  // namespace

Status spawn(const SpawnRequest& request, pid_t& pid, Fd& pidfd, Error& error) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  if (const int e = ::posix_spawn_file_actions_init(&actions); e != 0) return error.os(e, "posix_spawn");
  if (const int e = ::posix_spawnattr_init(&attributes); e != 0) {
    (void)::posix_spawn_file_actions_destroy(&actions);
    return error.os(e, "posix_spawn");
  }
  sigset_t none;
  sigset_t all;
  (void)::sigemptyset(&none);
  (void)::sigfillset(&all);
  // dup2 of a descriptor onto itself in the file actions clears close-on-exec in the child alone.
  int failed = ::posix_spawn_file_actions_adddup2(&actions, request.inherited_fd, request.inherited_fd);
  if (failed == 0)
    failed =
        ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  if (failed == 0) failed = ::posix_spawnattr_setpgroup(&attributes, 0);
  if (failed == 0) failed = ::posix_spawnattr_setsigmask(&attributes, &none);
  if (failed == 0) failed = ::posix_spawnattr_setsigdefault(&attributes, &all);
  const std::vector<char*> argv = pointers(request.argv);
  const std::vector<char*> environment = pointers(request.environment);
  if (failed == 0) failed = ::posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environment.data());
  (void)::posix_spawnattr_destroy(&attributes);
  (void)::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return error.os(failed, "starting worker program %s", argv[0]);
  const Status s = open_pidfd(pid, pidfd, error);
  if (s != FEEDLANE_OK) {  // its end could not be seen
    (void)::kill(pid, SIGKILL);
    (void)::waitpid(pid, nullptr, 0);
  }
  return s;
}

Status this_program(std::vector<std::string>& argv, Error& error) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/cmdline", "re"), &std::fclose);
  if (!file) return error.os(errno, "reading this program's arguments");
  std::string all;
  char buffer[4096];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, file.get())) > 0;) all.append(buffer, got);
  argv.clear();
  for (std::size_t at = 0; at < all.size();) {
    argv.emplace_back(all.c_str() + at);
    at += argv.back().size() + 1;
  }
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0 || length == sizeof path)
    return error.os(length < 0 ? errno : ENAMETOOLONG, "reading this program's path");
  if (argv.empty()) argv.emplace_back();
  argv[0].assign(path, static_cast<std::size_t>(length));
  return FEEDLANE_OK;
}

Status create_lifeline(Fd& read_end, Fd& write_end, Error& error) {
  int pair[2];
  if (::pipe2(pair, O_CLOEXEC | O_NONBLOCK) != 0) return error.os(errno, "pipe2");
  read_end.reset(pair[0]);
  write_end.reset(pair[1]);
  return FEEDLANE_OK;
}

Status tie_lifeline(int read_end, Error& error) {
  if (::fcntl(read_end, F_SETOWN, ::getpid()) != 0 || ::fcntl(read_end, F_SETSIG, SIGKILL) != 0)
    return error.os(errno, "owning the lifeline");
  const int flags = ::fcntl(read_end, F_GETFL);
  if (flags < 0 || ::fcntl(read_end, F_SETFL, flags | O_ASYNC) != 0) return error.os(errno, "arming the lifeline");
  // The signal comes with the event; an end closed before O_ASYNC was set sends none.
  pollfd entry{read_end, POLLIN, 0};
  if (::poll(&entry, 1, 0) == 1) return error.fail(FEEDLANE_E_PEER_DEAD, "the trainer is gone");
  return FEEDLANE_OK;
}

}  // namespace feedlane::os
