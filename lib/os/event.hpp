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

namespace detail {

inline void add_to_event(int fd, std::uint64_t count) {
  const int saved = errno;
  while (::write(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
  errno = saved;
}

}  // namespace detail

// A doorbell, whose eventfd both ends hold. The counter and O_NONBLOCK belong to all holders, and a broken one may fill,
// drain or change them at any moment, so nothing hangs on either: a ring adds 0, for which there is room in a full counter
// too, so that it never waits; it wakes who watches by Poller::add_bell, whose own epoll set keeps that it was rung.
inline void ring_event(int fd) { detail::add_to_event(fd, 0); }

// An event of this process alone: readable until it is drained. Async-signal-safe.
inline void signal_event(int fd) { detail::add_to_event(fd, 1); }

inline void drain_event(int fd) {
  std::uint64_t count = 0;
  while (::read(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

}  // namespace feedlane::os
