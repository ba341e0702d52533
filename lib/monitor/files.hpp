// SPDX-License-Identifier: Apache-2.0
// Memfds of another process, by their names. Any process may give a memfd any name and any contents: what is opened is to be checked.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/memfd.hpp"
#include "os/other_process.hpp"

namespace feedlane::monitor {

struct File {
  int number = -1;  // the first descriptor that the process has of it
  os::FileId id;
};

// The process's memfds, in order of descriptor. Status as of os::list_open_files.
Status list_memfds(std::int64_t pid, std::vector<os::OpenFile>& out, Error& error);
// Each one of this name once. None of them is opened: a process may have any number.
std::vector<File> files_of(std::int64_t pid, const std::vector<os::OpenFile>& memfds, const char* name);
// Opens it for reading. OK with an invalid descriptor: the process has closed it. E_OS: this process or the system has no descriptor
// or memory left.
Status open_file(std::int64_t pid, const File& file, os::Fd& out, Error& error);
// E_CORRUPT: a control segment of that process which has holes, though a loader or receiver reserves all of it. What is read of a
// segment is so bounded by memory that somebody has, and reading it takes no memory.
Status check_is_reserved(int control_fd, Error& error);

}  // namespace feedlane::monitor
