// SPDX-License-Identifier: Apache-2.0
// Starting, watching and ending processes through pidfds, without SIGCHLD, signal handlers or threads.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/placement.hpp"

namespace feedlane::os {

Status open_pidfd(pid_t pid, Fd& out, Error& error);

// Whether both are pidfds of one process that is not reaped yet. Compares the pids that /proc shows for them, and no
// pid of this process's PID namespace, because /proc may belong to another namespace. E_OS: unknown.
Status is_same_process(int pidfd, int other, bool& is_same, Error& error);

// True once the process has ended, reaped or not.
bool has_ended(int pidfd);

// Whether it is a pidfd of this process. False if /proc cannot be read.
bool is_this_process(int pidfd);

// Does nothing if the process has ended or is this process: a peer may have sent a pidfd of this process as its own.
void send_signal(int pidfd, int signal);
// Signals the process group that a child leads; `leader` is the child's pid. Does nothing once the child is reaped,
// because another process may have the pid, and nothing for the group of this process.
void send_signal_to_group(int pidfd, pid_t leader, int signal);

// Only for a process that is sure to end, because it was sent SIGKILL.
void wait_for_end(int pidfd);

// How a process ended. `known` is false for a process that was reaped by other code.
struct Ending {
  bool known = false;
  bool signaled = false;
  int code = 0;          // exit status or signal number
  bool is_kept = false;  // the child has ended, but a tracer (a debugger, a sanitizer) still holds it
};
// Reaps a child that has ended, unless a tracer keeps it (`is_kept`). Never waits.
Ending reap(int pidfd);
// How a process that is not a child has ended: known if its parent has not reaped it yet, and its status is not 0.
Ending look_at_zombie(int pidfd);

// abandon_child leaves a killed child to reap_abandoned, which is called when a loader is created, ended or destroyed.
// Children that are not reaped by then are reaped by the system after this process has ended. reap_abandoned returns
// false if tracers still hold some. Neither function blocks. Thread safety: any thread.
void abandon_child(Fd pidfd) noexcept;
bool reap_abandoned() noexcept;

struct SpawnRequest {
  std::vector<std::string> argv;  // argv[0] is looked up in PATH
  std::vector<std::string> environment;
  int inherited_fd = -1;             // stays open across exec under the same number
  int lifeline = -1;                 // read end of the lifeline that the process is tied to before it runs; -1: none
  const NumberSet* cpus = nullptr;   // processors that it runs on; nullptr: the processors of this process
  int directory = -1;                // directory that it runs in; -1: the directory of this process
  std::vector<std::string> files{};  // the first that can be executed is the program; empty: find_program(argv[0])
};
// Starts a program in a new process group, with default signal dispositions and an empty signal mask. On failure no
// process is left. The process can never outlive the other end of its lifeline.
Status spawn(const SpawnRequest& request, pid_t& pid, Fd& pidfd, Error& error);

// Opens the working directory, to start programs there later. `out` is invalid if it may not be opened.
void open_working_directory(Fd& out);
// The files that execvp would now try for argv[0], in their order. Some may be relative paths.
std::vector<std::string> find_program(const std::string& program);

// This program's arguments, to start it again.
Status this_program(std::vector<std::string>& argv, Error& error);
// The path of this program's file now. If the file was replaced or removed, the result still executes it.
std::string file_of_this_program();

// The write end of a pipe. When the last write end is closed, the kernel kills every process tied to the read end, even
// if it is busy, stopped or blocking signals. Needs no thread and no signal handler. (PR_SET_PDEATHSIG would fire at
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
// Unties this process. Closing the read end would not be enough, because children of this process may share it.
void untie_lifeline(int read_end);
// In a child that the host has forked: closes the write ends that it has inherited. Otherwise the child, as a worker,
// would keep its own lifeline and those of earlier workers open after the trainer's death.
void drop_inherited_lifelines();

// Forks while no other thread holds a lock of these functions. The child leads a process group and closes the write
// ends of all lifelines of all loaders; otherwise workers would outlive the trainer while the child runs. `pid` is 0 in
// the child.
Status fork_process(pid_t& pid, Fd& pidfd, Error& error, int lifeline = -1, const NumberSet* cpus = nullptr);

}  // namespace feedlane::os
