// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"

namespace feedlane::os {

// An epoll set whose members carry a tag. Level-triggered.
class Poller {
 public:
  struct Event {
    std::uint64_t tag;
    bool hung_up;  // the other end is closed, or the descriptor is in error
  };

  Status open(Error& error);
  Status add(int fd, std::uint64_t tag, Error& error);
  void remove(int fd);
  [[nodiscard]] int fd() const { return epoll_.get(); }

  // Waits until a member is readable. 0 with `count` events; TIMEOUT; INTERRUPTED by a signal; E_OS.
  Status wait(Deadline deadline, std::span<Event> events, std::size_t& count, Error& error);

 private:
  Fd epoll_;
};

// Waits for one descriptor to become readable (or hung up). 0, TIMEOUT, INTERRUPTED, E_OS.
Status wait_readable(int fd, Deadline deadline, Error& error);

}  // namespace feedlane::os
