// SPDX-License-Identifier: Apache-2.0
// Where trainer, worker, receiver and sender sleep to wait for each other. Every wait runs the same sequence:
//
//   spin     poll for a short while, if there is a processor to spare
//   prepare  set the own flag, so that every publisher rings from here on
//   sweep    poll once more: a publisher that did not see the flag has not rung
//   sleep    in the kernel, until a descriptor is readable or the deadline has passed
//   cancel   clear the flag
//
// `arm` does the same for a caller who sleeps in an event loop of its own, on fd().
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "os/poller.hpp"
#include "ring/doorbell.hpp"
#include "ring/spin.hpp"

namespace feedlane::ring {

class Waiter {
 public:
  // Until `use` there is no flag: every sleep waits for descriptors alone.
  Status open(Error& error) { return poller_.open(error); }
  // `parties`: how many processes and threads may run at once on this ring. Spinning needs a processor for each.
  void use(SleepFlag* flag, FencedBy fenced_by, std::uint32_t parties) {
    sleeper_ = Sleeper(flag, fenced_by);
    spin_ = Spin(parties);
    has_flag_ = true;
  }
  [[nodiscard]] os::Poller& poller() { return poller_; }
  [[nodiscard]] int fd() const { return poller_.fd(); }
  [[nodiscard]] FencedBy fenced_by() const { return sleeper_.fenced_by(); }

  // Awake: a publisher need not ring. Called at the start of each call that polls by itself.
  void cancel() {
    if (has_flag_) sleeper_.cancel();
  }
  // Polls until `ready()` is true or the time limit for spinning has passed.
  template <class Ready>
  bool spin(os::Deadline deadline, Ready&& ready) {
    return has_flag_ && spin_.until(deadline, ready);
  }

  // Sleeps until an event. `ready()` is the sweep: if it is true, there is no sleep and the result is OK. `until()` is called
  // after it and returns the time to wake up. `handle(event)` is called for each event, with the flag clear; a status of it
  // other than OK is returned. TIMEOUT; INTERRUPTED by a signal; E_OS.
  //
  // A sleep may end before `until` with OK and no event if the barrier that replaces the publisher's fence was refused (see
  // Sleeper::is_sure): callers poll again and sleep again.
  template <class Ready, class Until, class Handle>
  Status sleep(Ready&& ready, Until&& until, Handle&& handle, Error& error) {
    if (has_flag_) sleeper_.prepare();
    if (ready()) {
      cancel();
      return FEEDLANE_OK;
    }
    const os::Deadline deadline = until();
    const os::Deadline limited = has_flag_ ? sleeper_.limit(deadline) : deadline;
    return wait(limited, deadline, handle, error);
  }
  // The same with a deadline known before. If it has passed, only events that are there are handled; the flag isn't set.
  template <class Ready, class Handle>
  Status sleep_until(os::Deadline deadline, Ready&& ready, Handle&& handle, Error& error) {
    if (deadline.remaining_ns() == 0) return wait(deadline, deadline, handle, error);
    return sleep(
        ready, [=] { return deadline; }, handle, error);
  }
  // Sleeps until a descriptor is readable. The flag is not set, so publishers don't ring.
  template <class Handle>
  Status sleep_on_descriptors(os::Deadline deadline, Handle&& handle, Error& error) {
    return wait(deadline, deadline, handle, error);
  }
  // Handles the events that are there, without sleeping; in at most `rounds` rounds, because a peer that never stops ringing
  // has an event in each.
  template <class Handle>
  Status poll(std::size_t rounds, Handle&& handle, Error& error) {
    for (std::size_t round = 0; round < rounds; round++) {
      const Status s = wait(os::Deadline::at(0), os::Deadline::at(0), handle, error);
      if (s == FEEDLANE_TIMEOUT) break;
      if (s != FEEDLANE_OK && s != FEEDLANE_INTERRUPTED) return s;
    }
    return FEEDLANE_OK;
  }
  // Prepares for a sleep on fd() elsewhere. OK: nothing is ready, and every later change makes fd() readable. AGAIN: `ready()`
  // is true, or fd() is readable already, which an edge-triggered poll would not report. E_OS: a barrier was refused.
  template <class Ready>
  Status arm(Ready&& ready, Error& error) {
    sleeper_.prepare();
    const bool is_quiet = !ready() && !poller_.has_events();
    if (is_quiet && sleeper_.is_sure()) return FEEDLANE_OK;
    sleeper_.cancel();
    return is_quiet ? error.fail(FEEDLANE_E_OS, "membarrier, which worked before, is refused") : FEEDLANE_AGAIN;
  }

  // Most events that one wait takes from the kernel.
  static constexpr std::size_t max_events = 64;

 private:
  template <class Handle>
  Status wait(os::Deadline limited, os::Deadline deadline, Handle&& handle, Error& error) {
    std::array<os::Poller::Event, max_events> events;
    std::size_t count = 0;
    Status s = poller_.wait(limited, events, count, error);
    if (s == FEEDLANE_TIMEOUT && deadline.remaining_ns() != 0) s = FEEDLANE_OK;  // the caller polls again
    cancel();
    for (std::size_t i = 0; i < count; i++) {
      if constexpr (std::is_void_v<decltype(handle(events[i]))>) handle(events[i]);
      else if (const Status handled = handle(events[i]); handled != FEEDLANE_OK) s = handled;
    }
    return s;
  }

  os::Poller poller_;
  Sleeper sleeper_;
  Spin spin_;
  bool has_flag_ = false;
};

}  // namespace feedlane::ring
