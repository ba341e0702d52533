// SPDX-License-Identifier: Apache-2.0
// The descriptors of another process of the same user, looked at over /proc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "os/fd.hpp"

namespace feedlane::os {

struct OpenFile {
  int number;
  std::string target;  // a path, or what the kernel calls it: "/memfd:NAME (deleted)", "socket:[1]"
};

// All that are open now, by number. E_ARGUMENT, E_PEER_DEAD: there is no such process, or it has ended; E_OS: it is none of
// ours to look at.
Status list_open_files(std::int64_t pid, std::vector<OpenFile>& out, Error& error);

// The same memory under a descriptor of this process, for reading only; invalid if it isn't there any more, can't be
// had or is no shared memory, whatever its name says. Doesn't wait.
Fd open_again(std::int64_t pid, int number);

// What a process of ours is doing, as far as the kernel tells: its state, where it waits, its kernel stack. One line.
std::string describe_process(std::int64_t pid);

}  // namespace feedlane::os
