// SPDX-License-Identifier: Apache-2.0
// Finds memfds of another process by name. Any process may give a memfd any name and any contents, so callers must
// check the files that they open.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/memfd.hpp"
#include "os/other_process.hpp"

namespace feedlane::monitor {

struct File {
  int number = -1;  // the process's first descriptor of the file
  os::FileId id;
};

// The process's memfds whose names begin with "feedlane-", ordered by descriptor. Status as of os::list_open_files.
Status list_memfds(std::int64_t pid, std::vector<os::OpenFile>& out, Error& error);
// The files with this name, each once. Opens none of them, because a process may have any number.
std::vector<File> files_of(std::int64_t pid, const std::vector<os::OpenFile>& memfds, const char* name);
// Opens the file for reading. OK with an invalid descriptor: the process has closed the file. E_OS: this process or the
// system has no descriptor or memory left.
Status open_file(std::int64_t pid, const File& file, os::Fd& out, Error& error);
// E_CORRUPT if the control segment has holes, because a loader or receiver reserves all of its control. So a reader
// never reads more than some process has allocated, and reading allocates no memory.
Status check_is_reserved(int control_fd, Error& error);

}  // namespace feedlane::monitor
