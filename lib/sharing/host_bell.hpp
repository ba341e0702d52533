// SPDX-License-Identifier: Apache-2.0
// Tells a feeder's host that something was handled by another call than poll and serve. From ring() to silence() the loader's
// descriptor is readable, and arm is AGAIN. Silent in poll and serve, whose waits would not sleep otherwise.
//
// Used by the feeder's thread only.
#pragma once

#include <utility>

#include "base/error.hpp"
#include "os/event.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "sharing/tags.hpp"

namespace feedlane::sharing {

class HostBell {
 public:
  // Into the feeder's poller, which the loader's watches.
  Status open(os::Poller& poller, Error& error) {
    const Status s = os::create_event(event_, error);
    return s == FEEDLANE_OK ? poller.add(event_.get(), EventTag::host_bell, error) : s;
  }
  void ring() {
    if (!std::exchange(rings_, true)) os::signal_event(event_.get());
  }
  void silence() {
    if (std::exchange(rings_, false)) os::drain_event(event_.get());
  }

 private:
  os::Fd event_;
  bool rings_ = false;
};

}  // namespace feedlane::sharing
