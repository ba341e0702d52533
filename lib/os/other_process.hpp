// SPDX-License-Identifier: Apache-2.0
// Inspection of another process of the same user through /proc: its descriptors, and what it is doing.
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
  std::string target;  // a path, or the kernel's name for the file: "/memfd:NAME (deleted)", "socket:[1]"
};

// Lists the open descriptors whose target begins with `prefix`, ordered by number. E_ARGUMENT: `pid` is not positive.
// E_PEER_DEAD: there is no such process, or it has ended. E_OS: this process has no permission, or lacks descriptors or
// memory.
Status list_open_files(std::int64_t pid, std::string_view prefix, std::vector<OpenFile>& out, Error& error);

// Opens the memory of that descriptor in this process, read-only. OK with an invalid `out`: the descriptor was closed,
// may not be opened, is not shared memory, whatever its name says, or is on hugetlbfs, where a read could kill this
// process. E_OS: this process or the system has no descriptor or memory left, so nothing is known about the file.
// Doesn't block.
Status open_again(std::int64_t pid, int number, Fd& out, Error& error);

// Whether the process has begun to exit, or has ended. Also true if /proc doesn't show the process.
bool is_exiting(std::int64_t pid);

// One line about what a process is doing, as far as the kernel shows it: its state, where it waits, its kernel stack.
std::string describe_process(std::int64_t pid);

// How long a thread has been ready to run but waited for a processor, over its life. A process's id is the id of its
// first thread.
// -1: there is no such thread, or the kernel does not report it.
std::int64_t run_delay_ns(std::int64_t thread);

}  // namespace feedlane::os
