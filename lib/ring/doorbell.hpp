// SPDX-License-Identifier: Apache-2.0
// Waking a peer that sleeps, without a system call when it doesn't.
//
//   publisher: publish; fence; is the peer's flag set? then write its eventfd
//   sleeper:   set the flag; fence; sweep everything again; sleep on the eventfd (and on deaths, sockets, a deadline);
//              clear the flag
//
// The sleeper watches its eventfd by Poller::add_bell; nobody reads it.
//
// The fences pair: at least one side sees what the other stored before its own. The publisher's is dear where messages are
// small, for it waits until the message's line has come. So two that have agreed on it leave it out: the sleeper passes a
// barrier (os/membarrier.hpp) for both before it sweeps, and the publisher only sees to it that its compiler keeps the
// order.
//
// Only the sleeper writes its flag. A publisher that cleared it and was stopped before the write would take the wake-up
// with it. No timeout is needed for correctness.
#pragma once

#include <atomic>
#include <cstdint>

#include "os/clock.hpp"
#include "os/event.hpp"
#include "os/membarrier.hpp"
#include "ring/fence.hpp"

namespace feedlane::ring {

using SleepFlag = std::atomic<std::uint32_t>;

// Who sees to the publisher's side of the fence. A sleeper may do it though the publisher does too, never the other way.
enum class FencedBy { publisher, sleeper };

// The publisher's end: one eventfd for each pair of peers.
class Doorbell {
 public:
  Doorbell() = default;
  Doorbell(const SleepFlag* peer_sleeping, int peer_event, FencedBy fenced_by = FencedBy::publisher)
      : sleeping_(peer_sleeping), event_(peer_event), fenced_by_(fenced_by) {}

  // After publishing, in batches where there are several: the fence is the cost. True if the peer had to be woken.
  bool ring() const {
    // Pairs with the fence in Sleeper::prepare, or with the barrier there.
    if (fenced_by_ == FencedBy::sleeper) std::atomic_signal_fence(std::memory_order_seq_cst);
    else doorbell_fence();
    // Relaxed: the fence, whoever pays for it, orders it after what was published.
    if (sleeping_->load(std::memory_order_relaxed) == 0) return false;
    os::ring_event(event_);
    return true;
  }

 private:
  const SleepFlag* sleeping_ = nullptr;
  int event_ = -1;
  FencedBy fenced_by_ = FencedBy::publisher;
};

// The sleeper's end.
class Sleeper {
 public:
  Sleeper() = default;
  explicit Sleeper(SleepFlag* own_flag, FencedBy fenced_by = FencedBy::publisher)
      : flag_(own_flag), fenced_by_(fenced_by) {}

  // From here on every publisher rings. Sweep once more after it, then sleep or cancel.
  void prepare() {
    // Relaxed: the fence orders it before the sweep that follows.
    flag_->store(1, std::memory_order_relaxed);
    may_be_set_ = true;
    doorbell_fence();  // pairs with the fence in Doorbell::ring
    is_sure_ = fenced_by_ == FencedBy::publisher || os::pass_barrier();
  }
  // False: the barrier that was promised has been refused, as in a sandbox that was entered later, and a publisher may not
  // have seen the flag. Then sleep for a millisecond at most and sweep again: its stores are out long before.
  [[nodiscard]] bool is_sure() const { return is_sure_; }
  [[nodiscard]] os::Deadline limit(os::Deadline deadline) const {
    return is_sure_ ? deadline : deadline.earlier(os::Deadline::after(1'000'000));
  }
  [[nodiscard]] FencedBy fenced_by() const { return fenced_by_; }

  // Awake. A ring that comes late costs one needless wake-up. Nothing is written where nothing changes: publishers look at
  // the flag's line for every message.
  void cancel() {
    if (!may_be_set_) return;
    flag_->store(0, std::memory_order_relaxed);
    may_be_set_ = false;
  }

 private:
  SleepFlag* flag_ = nullptr;
  FencedBy fenced_by_ = FencedBy::publisher;
  bool is_sure_ = true;
  bool may_be_set_ = true;  // whoever had the flag before may have left it so
};

}  // namespace feedlane::ring
