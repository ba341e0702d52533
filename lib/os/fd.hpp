// SPDX-License-Identifier: Apache-2.0
// An owned descriptor.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace feedlane::os {
namespace detail {

// Moves a descriptor away from 0, 1 and 2, which the kernel hands out while a program has them closed: whatever any code prints
// would be written into the file behind them. Returns -1 with errno if no other number is free; then `fd` is closed.
inline int keep_above_stdio(int fd) {
  if (fd < 0 || fd > 2) return fd;
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (moved < 0 && errno == EBADF) return fd;
  const int reason = errno == EINVAL ? EMFILE : errno;  // EINVAL: the limit is 3 or lower
  (void)::close(fd);
  errno = reason;
  return moved;
}

// Holds the free ones of 0, 1 and 2, so that a pipe or socket that is made meanwhile gets none of them, not even until it is moved:
// what another thread prints there would stay in it, or end this process by SIGPIPE. Who writes to what this opens gets EBADF, as
// from a closed descriptor.
class StdioHeld {
 public:
  StdioHeld() {
    for (int fd = 0; fd >= 0 && fd <= 2;) {
      fd = ::open("/", O_PATH | O_CLOEXEC);
      if (fd > 2) (void)::close(fd);
      else if (fd >= 0) is_held_[fd] = true;
    }
  }
  StdioHeld(const StdioHeld&) = delete;
  StdioHeld& operator=(const StdioHeld&) = delete;
  ~StdioHeld() {
    for (int fd = 0; fd <= 2; fd++)
      if (is_held_[fd]) (void)::close(fd);
  }

 private:
  bool is_held_[3] = {};
};

}  // namespace detail

// Closes its descriptor in the destructor. Every descriptor that the library opens is close-on-exec and above 2, because whatever
// becomes an Fd is moved there: without a free number it is invalid and errno is EMFILE, as when it could not be opened.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(detail::keep_above_stdio(fd)) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) (void)::close(fd_);  // errors are ignored; on Linux EINTR has closed it
    fd_ = detail::keep_above_stdio(fd);
  }

 private:
  int fd_ = -1;
};

// Both ends never block. False, with errno.
[[nodiscard]] inline bool open_pipe(Fd& read_end, Fd& write_end) {
  int pair[2];
  const detail::StdioHeld held;
  if (::pipe2(pair, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  read_end.reset(pair[0]);
  write_end.reset(pair[1]);
  return read_end && write_end;
}

}  // namespace feedlane::os
