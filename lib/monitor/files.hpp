// SPDX-License-Identifier: Apache-2.0
// Memfds of another process, by their names.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/memfd.hpp"

namespace feedlane::monitor {

struct File {
  os::Fd fd;
  os::FileId id;
};

// Each memfd of this name once, in the order of its first descriptor. Any process may give a memfd this name: its contents are to be
// checked. E_PEER_DEAD: there is no such process. E_OS: its descriptors may not be read, or this process lacks descriptors or
// memory; `out` may have some of the files then, to be dropped.
Status find_files(std::int64_t pid, const char* name, std::vector<File>& out, Error& error);

}  // namespace feedlane::monitor
