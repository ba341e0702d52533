// SPDX-License-Identifier: Apache-2.0
// Notifies a feeder's host that a call other than poll and serve has handled events. From ring() to silence() the
// loader's descriptor is readable, and arm returns AGAIN. poll and serve silence the bell; otherwise their waits would
// not sleep.
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
  // Adds the bell to the feeder's poller, which the loader's poller watches.
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
