// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/eventfd.h>

#include <cstdint>

#include "base/error.hpp"
#include "os/fd.hpp"

namespace feedlane::os {

inline Status create_event(Fd& out, Error& error) {
  out.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return out ? FEEDLANE_OK : error.os(errno, "eventfd");
}

// Async-signal-safe. EAGAIN means that the counter is full, which wakes just as well; other failures mean that the peer
// broke its descriptor, and its pidfd tells the rest.
inline void signal_event(int fd) {
  const int saved = errno;
  const std::uint64_t one = 1;
  while (::write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
  errno = saved;
}

inline void drain_event(int fd) {
  std::uint64_t count = 0;
  while (::read(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

}  // namespace feedlane::os
