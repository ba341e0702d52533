// SPDX-License-Identifier: Apache-2.0
// Starting, watching and ending processes without SIGCHLD, handlers or threads: everything by pidfd.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "os/fd.hpp"

namespace feedlane::os {

Status open_pidfd(pid_t pid, Fd& out, Error& error);

// Whether both are pidfds of one process that isn't reaped yet. Which number it has is not asked: /proc may be of another PID
// namespace than this process. E_OS: it couldn't be looked up, which says nothing of the process.
Status is_same_process(int pidfd, int other, bool& is_same, Error& error);

// True once the process has ended, reaped or not.
bool has_ended(int pidfd);

// Nothing happens if it is gone.
void send_signal(int pidfd, int signal);
// To the whole process group that a child of ours leads, which was started as process `leader`. Nothing happens once the child
// is reaped: its number may be somebody else's.
void send_signal_to_group(int pidfd, pid_t leader, int signal);

// Only for one that is sure to end: a process that was sent SIGKILL.
void wait_for_end(int pidfd);

// How a process ended, as far as can be known: `known` is false for processes that are no child of ours, or that a host
// which reaps everything took away.
struct Ending {
  bool known = false;
  bool signaled = false;
  int code = 0;          // exit status or signal number
  bool is_kept = false;  // a child that has ended, but a tracer (a debugger, a sanitizer) still has it
};
// Reaps if it is a child that has ended, or says that it is kept. Never waits.
Ending reap(int pidfd);

// A child of ours that was killed and isn't waited for, or that a tracer has: reaped later by reap_abandoned, which whoever
// makes, ends or leaves a loader calls, or else with this process. Any thread; neither waits. False: tracers have some still.
void abandon_child(Fd pidfd) noexcept;
bool reap_abandoned() noexcept;

struct SpawnRequest {
  std::vector<std::string> argv;  // argv[0] is looked up in PATH
  std::vector<std::string> environment;
  int inherited_fd = -1;  // stays open across exec under the same number
  int lifeline = -1;      // the read end of one that the process is tied to before it runs; -1: none
};
// A new process group, default signal dispositions, empty signal mask. On failure no process is left. At no moment is there
// a process that outlives the other end of its lifeline.
Status spawn(const SpawnRequest& request, pid_t& pid, Fd& pidfd, Error& error);

// This program's file and arguments, to start it again.
Status this_program(std::vector<std::string>& argv, Error& error);

// The write end of a pipe whose read end kills its holder the moment the last write end is closed: no thread, no handler,
// works for busy, stopped and signal-blocked processes. (PR_SET_PDEATHSIG would fire at the end of the starting thread.)
class Lifeline {
 public:
  Lifeline() = default;
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;
  ~Lifeline() { cut(); }
  Status open(Fd& read_end, Error& error);
  void cut();
  [[nodiscard]] int fd() const { return write_end_.get(); }

 private:
  Fd write_end_;
};
// Ties a process to it, this one or a child. E_PEER_DEAD if the other end is closed already.
Status tie_lifeline(int read_end, pid_t pid, Error& error);
// Unties it again, for good: closing the descriptor would not be enough, since children of this process may share it.
void untie_lifeline(int read_end);

// fork, with no lock of this library held by another thread. The child leads a process group and has closed every lifeline's
// write end, of all loaders, or workers would outlive their trainer as long as it runs. 0 in the child.
Status fork_process(pid_t& pid, Fd& pidfd, Error& error, int lifeline = -1);

}  // namespace feedlane::os
