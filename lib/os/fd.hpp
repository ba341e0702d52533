// SPDX-License-Identifier: Apache-2.0
// A descriptor with an owner.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace feedlane::os {
namespace detail {

// Moves a descriptor to a number above 2. If a program has closed 0, 1 or 2, the kernel assigns these numbers to new
// files, and text that any code prints would be written into them. Returns -1 with errno if no other number is free;
// `fd` is closed then.
inline int keep_above_stdio(int fd) {
  if (fd < 0 || fd > 2) return fd;
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (moved < 0 && errno == EBADF) return fd;
  const int reason = errno == EINVAL ? EMFILE : errno;  // EINVAL: the limit is 3 or lower
  (void)::close(fd);
  errno = reason;
  return moved;
}

// Occupies those of the numbers 0, 1 and 2 that are free, so a new pipe or socket never gets one, not even until Fd
// moves it. Otherwise text that another thread prints in between would stay in the pipe or socket, or end this process
// by SIGPIPE. Writing to a number held here fails with EBADF, as for a closed descriptor.
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

// Closes its descriptor in the destructor. Every descriptor that the library opens is close-on-exec, and above 2
// because Fd moves it there. If no number is free, the Fd is invalid and errno is EMFILE, as if the descriptor could
// not be opened.
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
    if (fd_ >= 0) (void)::close(fd_);  // errors are ignored: on Linux even EINTR means that it is closed
    fd_ = detail::keep_above_stdio(fd);
  }

 private:
  int fd_ = -1;
};

// Creates a pipe whose ends never block. False on failure, with errno.
[[nodiscard]] inline bool open_pipe(Fd& read_end, Fd& write_end) {
  int pair[2];
  const detail::StdioHeld held;
  if (::pipe2(pair, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  read_end.reset(pair[0]);
  write_end.reset(pair[1]);
  return read_end && write_end;
}

}  // namespace feedlane::os
