// SPDX-License-Identifier: Apache-2.0
// Waking a peer that sleeps, without a system call when it doesn't.
//
//   publisher: publish; fence; is the peer's flag set? then write its eventfd
//   sleeper:   set the flag; fence; sweep everything again; sleep on the eventfd (and on deaths, sockets, a deadline);
//              clear the flag
//
// The sleeper watches its eventfd by Poller::add_bell; nobody reads it.
//
// Only the sleeper writes its flag. A publisher that cleared it and was stopped before the write would take the wake-up
// with it. No timeout is needed for correctness.
#pragma once

#include <atomic>
#include <cstdint>

#include "os/event.hpp"
#include "ring/fence.hpp"

namespace feedlane::ring {

using SleepFlag = std::atomic<std::uint32_t>;

// The publisher's end: one eventfd for each pair of peers.
class Doorbell {
 public:
  Doorbell() = default;
  Doorbell(const SleepFlag* peer_sleeping, int peer_event) : sleeping_(peer_sleeping), event_(peer_event) {}

  // After publishing, in batches where there are several: the fence is the cost. True if the peer had to be woken.
  bool ring() const {
    doorbell_fence();  // pairs with the fence in Sleeper::prepare
    // Relaxed: the fence orders it after what was published.
    if (sleeping_->load(std::memory_order_relaxed) == 0) return false;
    os::ring_event(event_);
    return true;
  }

 private:
  const SleepFlag* sleeping_ = nullptr;
  int event_ = -1;
};

// The sleeper's end.
class Sleeper {
 public:
  Sleeper() = default;
  explicit Sleeper(SleepFlag* own_flag) : flag_(own_flag) {}

  // From here on every publisher rings. Sweep once more after it, then sleep or cancel.
  void prepare() {
    // Relaxed: the fence orders it before the sweep that follows.
    flag_->store(1, std::memory_order_relaxed);
    doorbell_fence();  // pairs with the fence in Doorbell::ring
  }
  // Awake. A ring that comes late costs one needless wake-up.
  void cancel() { flag_->store(0, std::memory_order_relaxed); }

 private:
  SleepFlag* flag_ = nullptr;
};

}  // namespace feedlane::ring
