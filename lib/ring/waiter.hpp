// SPDX-License-Identifier: Apache-2.0
// The class with which trainer, worker, receiver and sender wait for each other. Every wait runs the same sequence:
//
//   spin     poll for a short while, if every party has a processor
//   prepare  set this side's flag, so that every publisher rings from now on
//   sweep    poll once more, because a publisher that did not see the flag has not rung
//   sleep    in the kernel, until a descriptor is readable or the deadline has passed
//   cancel   clear the flag
//
// `arm` does this up to the sweep, for a caller that sleeps on fd() in its own event loop.
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
  // Before `use` there is no flag, and a sleep waits only for descriptors.
  Status open(Error& error) { return poller_.open(error); }
  // `parties`: how many processes and threads may run at once on this ring. Spinning needs a processor for each.
  void use(SleepFlag* flag, FencedBy fenced_by, std::uint32_t parties) {
    sleeper_ = Sleeper(flag, fenced_by);
    spin_ = Spin(parties);
    has_flag_ = true;
  }
  // Afterwards there are so many parties.
  void expect(std::uint32_t parties) { spin_.expect(parties); }
  [[nodiscard]] os::Poller& poller() { return poller_; }
  [[nodiscard]] int fd() const { return poller_.fd(); }
  [[nodiscard]] FencedBy fenced_by() const { return sleeper_.fenced_by(); }

  // Clears the flag, so that publishers don't ring. Called at the start of every function that polls messages itself.
  void cancel() {
    if (has_flag_) sleeper_.cancel();
  }
  // Polls until `ready()` is true or the time limit for spinning has passed.
  template <class Ready>
  bool spin(os::Deadline deadline, Ready&& ready) {
    return has_flag_ && spin_.until(deadline, ready);
  }

  // Sleeps until an event or a deadline. `ready()` is the sweep: if it returns true, `sleep` returns OK at once.
  // `until()` is called after it and returns the deadline. `handle(event)` is called for each event, with the flag
  // clear. If it returns a status other than OK, so does `sleep`. TIMEOUT; INTERRUPTED by a signal; E_OS.
  //
  // If the barrier that replaces the publisher's fence was refused (see Sleeper::is_sure), `sleep` may return OK early
  // and without an event. Callers then poll and sleep again.
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
  // Like sleep, with a deadline known in advance. If the deadline has passed, it handles the pending events only, and
  // does not set the flag.
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
  // Handles pending events without sleeping. Limited to `rounds` rounds, because a peer that rings without end causes
  // events in every round.
  template <class Handle>
  Status poll(std::size_t rounds, Handle&& handle, Error& error) {
    for (std::size_t round = 0; round < rounds; round++) {
      const Status s = wait(os::Deadline::at(0), os::Deadline::at(0), handle, error);
      if (s == FEEDLANE_TIMEOUT) break;
      if (s != FEEDLANE_OK && s != FEEDLANE_INTERRUPTED) return s;
    }
    return FEEDLANE_OK;
  }
  // Prepares the caller's sleep on fd(). OK: nothing is ready, and every later change makes fd() readable. AGAIN:
  // `ready()` returned true, or fd() is readable already, which an edge-triggered poll would not report. E_OS: a
  // barrier was refused.
  template <class Ready>
  Status arm(Ready&& ready, Error& error) {
    sleeper_.prepare();
    const bool is_quiet = !ready() && !poller_.has_events();
    if (is_quiet && sleeper_.is_sure()) return FEEDLANE_OK;
    sleeper_.cancel();
    return is_quiet ? error.fail(FEEDLANE_E_OS, "the system call membarrier, which worked before, now fails")
                    : FEEDLANE_AGAIN;
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
