// SPDX-License-Identifier: Apache-2.0
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
  // Tells of it as long as it is readable.
  Status add(int fd, std::uint64_t tag, Error& error);
  // An eventfd that is rung by ring_event: tells of it once after a ring, or several, and once at first.
  Status add_bell(int fd, std::uint64_t tag, Error& error);
  void remove(int fd);
  [[nodiscard]] int fd() const { return epoll_.get(); }
  // Whether a wait would return at once. Who polls fd() by edges hears of nothing that was there before.
  [[nodiscard]] bool has_news() const;

  // Waits until a member is readable. 0 with `count` events; TIMEOUT; INTERRUPTED by a signal; E_OS.
  Status wait(Deadline deadline, std::span<Event> events, std::size_t& count, Error& error);

 private:
  Status add(int fd, std::uint64_t tag, std::uint32_t conditions, Error& error);
  Fd epoll_;
};

// Waits for one descriptor, or the other if it isn't -1, to become readable (or hung up). 0, TIMEOUT, INTERRUPTED, E_OS.
Status wait_readable(int fd, Deadline deadline, Error& error, int other = -1);

}  // namespace feedlane::os
