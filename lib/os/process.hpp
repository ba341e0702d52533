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

// The process behind a pidfd, 0 if the descriptor is no pidfd, is of a process that is gone, or is out of our sight.
pid_t pid_of_pidfd(int pidfd);

// True once the process has ended, reaped or not.
bool has_ended(int pidfd);

// Nothing happens if it is gone.
void send_signal(int pidfd, int signal);
// To the whole process group that the process leads, by number: only while the process is unreaped, so that the number
// can't have been given to others.
void send_signal_to_group(pid_t leader, int signal);

// How a process ended, as far as can be known: `known` is false for processes that are no child of ours, or that a host
// which reaps everything took away.
struct Ending {
  bool known = false;
  bool signaled = false;
  int code = 0;  // exit status or signal number
};
// Reaps if it is a child that has ended. Never waits.
Ending reap(int pidfd);

struct SpawnRequest {
  std::vector<std::string> argv;  // argv[0] is looked up in PATH
  std::vector<std::string> environment;
  int inherited_fd = -1;  // stays open across exec under the same number
};
// A new process group, default signal dispositions, empty signal mask. On failure no process is left.
Status spawn(const SpawnRequest& request, pid_t& pid, Fd& pidfd, Error& error);

// This program's file and arguments, to start it again.
Status this_program(std::vector<std::string>& argv, Error& error);

// A pipe whose read end kills its holder the moment the last write end is closed: no thread, no handler, works for busy,
// stopped and signal-blocked processes. (PR_SET_PDEATHSIG would fire at the end of the starting thread.)
Status create_lifeline(Fd& read_end, Fd& write_end, Error& error);
// Ties this process to it. E_PEER_DEAD if the other end is closed already.
Status tie_lifeline(int read_end, Error& error);

}  // namespace feedlane::os
