// SPDX-License-Identifier: Apache-2.0
// Forked processes that are killed, stopped and woken by the process that leads them.
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>

#include "shared.hpp"

namespace stress {

class Forked {
 public:
  // `run` returns its status.
  template <class F>
  void start(F&& run) {
    pid_ = ::fork();
    wakes_ns_ = 0;
    if (pid_ < 0) die("fork", static_cast<std::uint64_t>(errno), 0);
    if (pid_ != 0) return;
    const int status = run();
    (void)std::fflush(stdout);
    ::_exit(status);
  }
  [[nodiscard]] pid_t pid() const { return pid_; }

  [[nodiscard]] bool is_stopped() const { return wakes_ns_ != 0; }
  // It may be stopped. It is gone when this returns.
  void kill() const {
    (void)::kill(pid_, SIGKILL);
    const int status = wait();
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
      die("the end of a process that is killed", static_cast<std::uint64_t>(status), SIGKILL);
  }
  // False: it is stopped already.
  bool stop(std::int64_t until_ns) {
    if (wakes_ns_ != 0) return false;
    (void)::kill(pid_, SIGSTOP);
    wakes_ns_ = until_ns;
    return true;
  }
  // Continues it if it is time.
  void wake(std::int64_t now_ns) {
    if (wakes_ns_ == 0 || wakes_ns_ > now_ns) return;
    (void)::kill(pid_, SIGCONT);
    wakes_ns_ = 0;
  }
  // Waits until it ends by itself.
  void await() const {
    if (const int status = wait(); status != 0) die("the status of a process", static_cast<std::uint64_t>(status), 0);
  }
  // Nobody ends by himself before.
  static void expect_none_ended() {
    int status = -1;
    if (const pid_t pid = ::waitpid(-1, &status, WNOHANG); pid != 0)
      die("the status of a process that ended early", static_cast<std::uint64_t>(status), 0);
  }

 private:
  [[nodiscard]] int wait() const {
    int status = -1;
    if (::waitpid(pid_, &status, 0) != pid_) die("waitpid", static_cast<std::uint64_t>(errno), 0);
    return status;
  }

  pid_t pid_ = -1;
  std::int64_t wakes_ns_ = 0;  // 0: it isn't stopped
};

}  // namespace stress
