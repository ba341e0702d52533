// SPDX-License-Identifier: Apache-2.0
// Which processes there are, and how many loaders, rings and arenas their descriptors are named for. Nothing is opened.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <feedlane/monitor.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace observe {

struct Process {
  std::int64_t pid;
  uid_t user;
};

// Processes of this user (root: all), in order of pid, without this one. Says on standard error why they cannot be listed.
std::vector<Process> processes();

using FileId = std::pair<dev_t, ino_t>;

// What one pass over a process's descriptors finds.
struct Survey {
  bool is_known = false;  // false: the descriptors cannot be read
  std::vector<FileId>
      loaders;  // control segments, each once, in the order of their first descriptors: that of the library
  std::vector<FileId> rings;
  std::vector<FileId> arenas;  // of their owners
  // The code is 0, or E_LIMIT: there are more descriptors, loaders, rings or arenas than a trainer has, and none is to be opened. Any
  // process can pretend to have any number, and to open one takes a pass over all descriptors.
  feedlane::Error refusal;
};
// `is_chosen`: the user has named this process, so that a long look is wanted.
Survey survey(std::int64_t pid, bool is_chosen);

// A process that has a descriptor of a file.
struct Holder {
  std::int64_t pid;
  std::optional<FileId> file;  // nullopt: unknown
};
// Which of them have it from an ancestor that is among them too. They are in order of pid.
std::vector<bool> inherited(const std::vector<Holder>& holders);

// An error of a command's own.
feedlane::Error limit_error(const std::string& text);

// A process's number in its own PID namespace.
std::int64_t pid_as_it_sees_itself(std::int64_t pid);
// The command line of a process, printable, at most `most` characters, or its name in brackets.
std::string program_of(std::int64_t pid, std::size_t most = 60);

}  // namespace observe
