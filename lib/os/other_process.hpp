// SPDX-License-Identifier: Apache-2.0
// Inspection of another process of the same user by /proc: its descriptors, and what it is doing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "os/fd.hpp"

namespace feedlane::os {

struct OpenFile {
  int number;
  std::string target;  // a path, or the kernel's name for it: "/memfd:NAME (deleted)", "socket:[1]"
};

// The open descriptors whose target begins with `prefix`, in order of number. E_ARGUMENT; E_PEER_DEAD: there is no such process, or
// it has ended; E_OS: this process has no permission.
Status list_open_files(std::int64_t pid, std::string_view prefix, std::vector<OpenFile>& out, Error& error);

// A descriptor of this process for the same memory, read-only. OK with an invalid one: the descriptor is closed by now, may not be
// opened, is no shared memory, whatever its name says, or is of huge pages, which a reader could be killed for. E_OS: this process or
// the system has no descriptor or memory left, so nothing is known of the file. Doesn't block.
Status open_again(std::int64_t pid, int number, Fd& out, Error& error);

// Whether the process has begun to exit, or is gone. True also where /proc doesn't show it.
bool is_exiting(std::int64_t pid);

// What a process is doing, as far as the kernel shows it: its state, where it waits, its kernel stack. One line.
std::string describe_process(std::int64_t pid);

// For how long a thread was ready to run and waited for a processor, in its life; a process's number is that of its first thread.
// -1: there is no such thread, or the kernel does not say.
std::int64_t run_delay_ns(std::int64_t thread);

}  // namespace feedlane::os
