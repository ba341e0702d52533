// SPDX-License-Identifier: Apache-2.0
// An owned descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace feedlane::os {

// Closes its descriptor in the destructor. Every descriptor that the library opens is close-on-exec.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
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
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace feedlane::os
