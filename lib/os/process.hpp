// SPDX-License-Identifier: Apache-2.0
// Starting, watching and ending processes without SIGCHLD, handlers or threads: everything by pidfd.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/placement.hpp"

namespace feedlane::os {

Status open_pidfd(pid_t pid, Fd& out, Error& error);

// Whether both are pidfds of the same process, not reaped yet. The pid itself is not compared with one of this process's PID
// namespace: /proc may be of another one. E_OS: unknown.
Status is_same_process(int pidfd, int other, bool& is_same, Error& error);

// True once the process has ended, reaped or not.
bool has_ended(int pidfd);

// Whether it is a pidfd of this process. False if /proc cannot be read.
bool is_this_process(int pidfd);

// Does nothing if the process has ended, or is this one: what a peer calls its pidfd may be a pidfd of this process.
void send_signal(int pidfd, int signal);
// Sends to the process group that a child leads; `leader` is its pid. Does nothing once the child is reaped, because the pid
// may belong to another process, and nothing for the group of this process.
void send_signal_to_group(int pidfd, pid_t leader, int signal);

// Only for a process that is sure to end, after SIGKILL.
void wait_for_end(int pidfd);

// How a process ended. `known` is false for a process that is no child of this one, or that the host has reaped itself.
struct Ending {
  bool known = false;
  bool signaled = false;
  int code = 0;          // exit status or signal number
  bool is_kept = false;  // a child that has ended, but a tracer (a debugger, a sanitizer) still has it
};
// Reaps if it is a child that has ended, or says that it is kept. Never waits.
Ending reap(int pidfd);

// Leaves a killed child to be reaped later by reap_abandoned, which creating, ending and destroying a loader call; else the
// kernel reaps it after this process. Neither function blocks. reap_abandoned is false if tracers still have some. Thread safety:
// any thread.
void abandon_child(Fd pidfd) noexcept;
bool reap_abandoned() noexcept;

struct SpawnRequest {
  std::vector<std::string> argv;  // argv[0] is looked up in PATH
  std::vector<std::string> environment;
  int inherited_fd = -1;             // stays open across exec under the same number
  int lifeline = -1;                 // read end of the lifeline that the process is tied to before it runs; -1: none
  const NumberSet* cpus = nullptr;   // that it runs on; nullptr: where this process does
  int directory = -1;                // that it runs in; -1: where this process does
  std::vector<std::string> files{};  // the first that can be executed is the program; empty: those that argv[0] names
};
// Starts a program in a new process group, with default signal dispositions and an empty signal mask. On failure no process
// is left. At no moment can the process outlive the other end of its lifeline.
Status spawn(const SpawnRequest& request, pid_t& pid, Fd& pidfd, Error& error);

// The directory that this process is in, to start programs there later. Invalid if it may not be opened.
void open_working_directory(Fd& out);
// The files that execvp would try for argv[0] now, in that order. Some may be relative.
std::vector<std::string> find_program(const std::string& program);

// This program's arguments, to start it again.
Status this_program(std::vector<std::string>& argv, Error& error);
// This program's file now. A file that was replaced or removed can still be executed.
std::string file_of_this_program();

// The write end of a pipe. The kernel kills every process tied to the read end when the last write end is closed. Needs no
// thread and no handler; works for busy and stopped processes and those that block signals. (PR_SET_PDEATHSIG would fire at
// the end of the thread that started the process.)
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
// Ties this process or a child to a lifeline. E_PEER_DEAD if the other end is closed already.
Status tie_lifeline(int read_end, pid_t pid, Error& error);
// Unties this process. Closing the descriptor would not be enough, because children of this process may share it.
void untie_lifeline(int read_end);
// In a child that the host has forked: closes the write ends that it has inherited. As a worker it would otherwise hold its own
// lifeline, and those of the workers before it, after the trainer's death.
void drop_inherited_lifelines();

// fork, with no lock of this library held by another thread. The child leads a process group and closes the write ends of all
// lifelines of all loaders; otherwise workers would outlive the trainer as long as the child runs. `pid` is 0 in the child.
Status fork_process(pid_t& pid, Fd& pidfd, Error& error, int lifeline = -1, const NumberSet* cpus = nullptr);

}  // namespace feedlane::os
