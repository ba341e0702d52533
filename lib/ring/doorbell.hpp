// SPDX-License-Identifier: Apache-2.0
// The doorbell: wakes a peer that sleeps, and makes no system call when the peer is awake.
//
//   publisher: publish; fence; is the peer's flag set? then write its eventfd
//   sleeper:   set the flag; fence; sweep everything again; sleep on the eventfd, pidfds and sockets until a deadline;
//              clear the flag
//
// The sleeper watches its eventfd through Poller::add_bell. Nobody reads the eventfd.
//
// The fences pair: at least one side sees the stores that the other side made before its fence. The publisher's fence
// is expensive for small messages, because it waits until the message's cache line has arrived. Two peers can agree to
// omit it. Then the sleeper issues a barrier for both processes (os/membarrier.hpp) before it sweeps, and the publisher
// needs only a compiler fence.
//
// Only the sleeper writes its flag. If a publisher cleared the flag and were stopped before it wrote the eventfd, the
// wake-up would be lost. Correctness needs no timeout, except after a refused barrier (Sleeper::is_sure).
#pragma once

#include <atomic>
#include <cstdint>

#include "os/clock.hpp"
#include "os/event.hpp"
#include "os/membarrier.hpp"
#include "ring/fence.hpp"

namespace feedlane::ring {

using SleepFlag = std::atomic<std::uint32_t>;

// Which side provides the publisher's fence. Both sides may provide it. If neither does, a wake-up can be lost.
enum class FencedBy { publisher, sleeper };

// The publisher's end. Each pair of peers has its own eventfd.
class Doorbell {
 public:
  Doorbell() = default;
  Doorbell(const SleepFlag* peer_sleeping, int peer_event, FencedBy fenced_by = FencedBy::publisher)
      : sleeping_(peer_sleeping), event_(peer_event), fenced_by_(fenced_by) {}

  // Call after publishing, once for several messages, because the fence is the main cost. True if it rang the eventfd.
  bool ring() const {
    // Pairs with the fence in Sleeper::prepare, or with the barrier there.
    if (fenced_by_ == FencedBy::sleeper) std::atomic_signal_fence(std::memory_order_seq_cst);
    else doorbell_fence();
    // Relaxed: the fence, or the sleeper's barrier, orders the load after the stores that published.
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

  // Sets the flag, so that every publisher rings from now on. The caller sweeps once more, then sleeps or cancels.
  void prepare() {
    // Relaxed: the fence orders the store before the caller's sweep.
    flag_->store(1, std::memory_order_relaxed);
    may_be_set_ = true;
    doorbell_fence();  // pairs with the fence in Doorbell::ring
    is_sure_ = fenced_by_ == FencedBy::publisher || os::pass_barrier();
  }
  // False: the kernel refused the barrier, for example in a sandbox entered after registration, so a publisher may have
  // missed the flag. The caller must then sleep for at most a millisecond and sweep again. The publisher's stores are
  // visible long before that.
  [[nodiscard]] bool is_sure() const { return is_sure_; }
  [[nodiscard]] os::Deadline limit(os::Deadline deadline) const {
    return is_sure_ ? deadline : deadline.earlier(os::Deadline::after(1'000'000));
  }
  [[nodiscard]] FencedBy fenced_by() const { return fenced_by_; }

  // Clears the flag. A late ring costs one unnecessary wake-up. The flag is written only if it may be set, because
  // publishers read its cache line for every message.
  void cancel() {
    if (!may_be_set_) return;
    flag_->store(0, std::memory_order_relaxed);
    may_be_set_ = false;
  }

 private:
  SleepFlag* flag_ = nullptr;
  FencedBy fenced_by_ = FencedBy::publisher;
  bool is_sure_ = true;
  bool may_be_set_ = true;  // the flag's previous owner may have left it set
};

}  // namespace feedlane::ring
