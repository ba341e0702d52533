// SPDX-License-Identifier: Apache-2.0
// eventfds, as doorbells between processes and as events within one, and timers.
#pragma once

#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"

namespace feedlane::os {

// `flags`: EFD_SEMAPHORE or 0.
inline Status create_event(Fd& out, Error& error, int flags = 0) {
  out.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | flags));
  return out ? FEEDLANE_OK : error.os(errno, "eventfd");
}

inline Status create_timer(Fd& out, Error& error) {
  out.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  return out ? FEEDLANE_OK : error.os(errno, "timerfd_create");
}

// Makes a timer readable from `deadline` on. Until then, or for ever if that is never, it is not readable.
inline Status set_timer(int fd, Deadline deadline, Error& error) {
  itimerspec time{};
  if (!deadline.is_never()) {
    const std::int64_t left = std::max<std::int64_t>(deadline.remaining_ns(), 1);  // 0 would disarm it
    time.it_value.tv_sec = left / 1'000'000'000;
    time.it_value.tv_nsec = left % 1'000'000'000;
  }
  return ::timerfd_settime(fd, 0, &time, nullptr) == 0 ? FEEDLANE_OK : error.os(errno, "timerfd_settime");
}

namespace detail {

inline void add_to_event(int fd, std::uint64_t count) {
  const int saved = errno;
  while (::write(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
  errno = saved;
}

}  // namespace detail

// Rings a doorbell, whose eventfd both ends hold. The ends share its counter and O_NONBLOCK, and a faulty process may
// fill or drain the counter or change the flag at any time, so nothing depends on either. ring_event adds 0, which
// doesn't block even if writes have filled the counter. It wakes a peer that watches the eventfd through
// Poller::add_bell; that peer's epoll set remembers the ring.
inline void ring_event(int fd) { detail::add_to_event(fd, 0); }

// Refuses a descriptor that another process sent as a doorbell if a write to it could block, as on a pipe or a socket.
// Anonymous inodes of the kernel have no file type, and of these only eventfds can be written to. E_CORRUPT.
inline Status check_bell(int fd, Error& error) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return error.os(errno, "fstat of a doorbell");
  if ((status.st_mode & S_IFMT) == 0) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_CORRUPT, "event", status.st_mode & S_IFMT, 0,
                      "the peer sent a file of type {} instead of an eventfd", status.st_mode & S_IFMT);
}

// Signals an event within this process. It stays readable until it is drained. Async-signal-safe.
inline void signal_event(int fd) { detail::add_to_event(fd, 1); }

inline void drain_event(int fd) {
  std::uint64_t count = 0;
  while (::read(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

}  // namespace feedlane::os
