// SPDX-License-Identifier: Apache-2.0
// A system that has no memory left to reserve, for this process and the children that it forks meanwhile. To be included once a
// program: it stands in for the system's fallocate, the library's too.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace feedlane::test {

inline bool is_full = false;
class NoRoom {
 public:
  NoRoom() { is_full = true; }
  NoRoom(const NoRoom&) = delete;
  NoRoom& operator=(const NoRoom&) = delete;
  ~NoRoom() { is_full = false; }
};

}  // namespace feedlane::test

extern "C" int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (feedlane::test::is_full && (mode & FALLOC_FL_PUNCH_HOLE) == 0) {
    errno = ENOSPC;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, bytes));
}
