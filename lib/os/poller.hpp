// SPDX-License-Identifier: Apache-2.0
// The poller: an epoll set.
#pragma once

#include <cstdint>
#include <span>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"

namespace feedlane::os {

// An epoll set whose members carry a tag.
class Poller {
 public:
  struct Event {
    std::uint64_t tag;
    bool hung_up;  // the other end is closed, or the descriptor is in error
  };

  Status open(Error& error);
  // Reports the descriptor as long as it is readable.
  Status add(int fd, std::uint64_t tag, Error& error);
  // Adds an eventfd for ring_event: reports it once after one or more rings, and once at first.
  Status add_bell(int fd, std::uint64_t tag, Error& error);
  void remove(int fd);
  [[nodiscard]] int fd() const { return epoll_.get(); }
  // Whether a wait would return at once. An edge-triggered poll of fd() doesn't report events that were there before.
  [[nodiscard]] bool has_events() const;

  // Waits until a member is readable. OK with `count` events; TIMEOUT; INTERRUPTED by a signal; E_OS.
  Status wait(Deadline deadline, std::span<Event> events, std::size_t& count, Error& error);

 private:
  Status add(int fd, std::uint64_t tag, std::uint32_t conditions, Error& error);
  Fd epoll_;
};

// Waits for `fd`, or `other` if it isn't -1, to become readable or to hang up. OK, TIMEOUT, INTERRUPTED, E_OS.
Status wait_readable(int fd, Deadline deadline, Error& error, int other = -1);

}  // namespace feedlane::os
