// SPDX-License-Identifier: Apache-2.0
// Waiting for descriptors: an epoll set, and a wait for one or two descriptors.
#pragma once

#include <cstdint>
#include <span>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"

namespace feedlane::os {

// An epoll set. Each member has a tag, which its events carry.
class Poller {
 public:
  struct Event {
    std::uint64_t tag;
    bool hung_up;  // the other end is closed, or the descriptor is in error
  };

  Status open(Error& error);
  // Adds a descriptor that is reported as long as it is readable.
  Status add(int fd, std::uint64_t tag, Error& error);
  // Adds an eventfd for ring_event. It is reported once at first, and then once after one or more rings.
  Status add_bell(int fd, std::uint64_t tag, Error& error);
  // Adds a descriptor of the user, which is reported once when it is readable, and once more after each `watch_again`.
  Status add_once(int fd, std::uint64_t tag, Error& error);
  Status watch_again(int fd, std::uint64_t tag, Error& error);
  void remove(int fd);
  [[nodiscard]] int fd() const { return epoll_.get(); }
  // Whether a wait would return at once. An edge-triggered poll of fd() doesn't report earlier events.
  [[nodiscard]] bool has_events() const;

  // Waits until a member is readable. OK with `count` events; TIMEOUT; INTERRUPTED by a signal; E_OS.
  Status wait(Deadline deadline, std::span<Event> events, std::size_t& count, Error& error);

 private:
  Status control(int operation, int fd, std::uint64_t tag, std::uint32_t conditions, Error& error);
  Fd epoll_;
};

// Waits until `fd`, or `other` unless it is -1, is readable or hung up. OK, TIMEOUT, INTERRUPTED, E_OS.
Status wait_readable(int fd, Deadline deadline, Error& error, int other = -1);

}  // namespace feedlane::os
