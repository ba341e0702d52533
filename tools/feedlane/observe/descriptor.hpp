// SPDX-License-Identifier: Apache-2.0
// A file descriptor that is closed at the end of its scope.
#pragma once

#include <unistd.h>

namespace observe {

// Takes what a system call returned; negative: there is none.
class Descriptor {
 public:
  explicit Descriptor(long fd) : fd_(static_cast<int>(fd)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) (void)::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  void reset(int fd) {
    if (fd_ >= 0) (void)::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

}  // namespace observe
