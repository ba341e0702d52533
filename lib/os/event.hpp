// SPDX-License-Identifier: Apache-2.0
// eventfds: doorbells between processes, and events within one. Timers.
#pragma once

#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

#include <cerrno>
#include <cstdint>

#include "base/error.hpp"
#include "os/fd.hpp"

namespace feedlane::os {

// `flags`: EFD_SEMAPHORE, or none.
inline Status create_event(Fd& out, Error& error, int flags = 0) {
  out.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | flags));
  return out ? FEEDLANE_OK : error.os(errno, "eventfd");
}

inline Status create_timer(Fd& out, Error& error) {
  out.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  return out ? FEEDLANE_OK : error.os(errno, "timerfd_create");
}

namespace detail {

inline void add_to_event(int fd, std::uint64_t count) {
  const int saved = errno;
  while (::write(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
  errno = saved;
}

}  // namespace detail

// Rings a doorbell, whose eventfd both ends hold. All holders share the counter and O_NONBLOCK, and a faulty process may fill,
// drain or change them at any moment, so nothing depends on either: ring_event adds 0, which never blocks, not even with a full
// counter. It wakes a peer that watches by Poller::add_bell; the epoll set of that peer remembers the ring.
inline void ring_event(int fd) { detail::add_to_event(fd, 0); }

// What another process calls a doorbell must be no file that a write could block on: a pipe, a socket. The kernel's anonymous inodes
// have no type; of those only eventfds can be written to. E_CORRUPT.
inline Status check_bell(int fd, Error& error) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return error.os(errno, "fstat of a doorbell");
  if ((status.st_mode & S_IFMT) == 0) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_CORRUPT, "event", status.st_mode & S_IFMT, 0,
                      "what came for an eventfd is a file of type {}", status.st_mode & S_IFMT);
}

// Signals an event within this process: readable until it is drained. Async-signal-safe.
inline void signal_event(int fd) { detail::add_to_event(fd, 1); }

inline void drain_event(int fd) {
  std::uint64_t count = 0;
  while (::read(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

}  // namespace feedlane::os
