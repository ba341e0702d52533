// SPDX-License-Identifier: Apache-2.0
// Adaptive spinning before a sleep: a wake-up costs tens of microseconds, a message that is about to arrive a fraction of
// one.
//
// Spinning pays only while the peer runs, which can't be queried. With fewer processors than parties it would take a
// processor from one that has work to do, so it is off there. Otherwise recent results decide: each failure halves the time
// limit, down to none; each success restores it; once every `rests` sleeps it is tried again. Only time depends on it: the
// doorbell's flag stays clear while a thread spins, and after a failure the full sequence follows: flag, fence, sweep, sleep.
#pragma once

#include <sys/sysinfo.h>

#include <cstdint>

#include "os/clock.hpp"

namespace feedlane::ring {

// In a loop that waits for another processor: lets the core's other hardware thread run.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Spin {
 public:
  // About the cost of two wake-ups, there and back, on virtual machines. A smaller value gains nothing where they are cheaper.
  static constexpr std::int64_t most_ns = 100'000;

  // `parties`: how many threads and processes may run at once.
  explicit Spin(std::uint32_t parties = 2) : can_ever_(static_cast<std::uint32_t>(::get_nprocs()) >= parties) {}

  // True if `ready` became true before the time limit or `deadline` had passed.
  template <class F>
  bool until(os::Deadline deadline, F&& ready) {
    if (patience_ns_ == 0 && !is_time_to_try()) return false;
    const std::int64_t left = deadline.remaining_ns();
    if (left == 0) return false;
    for (int i = 0; i < first_polls; i++)
      if (ready()) return succeed();
    const std::int64_t end = os::now_ns() + (left < patience_ns_ ? left : patience_ns_);
    do {
      for (int i = 0; i < polls_per_clock; i++) {
        if (ready()) return succeed();
        relax();
      }
    } while (os::now_ns() < end);
    patience_ns_ = patience_ns_ / 2 < least_ns ? 0 : patience_ns_ / 2;
    return false;
  }

 private:
  static constexpr std::int64_t least_ns = 2'000;
  static constexpr int first_polls = 256;  // before the first relax, which takes as long as a message needs to arrive
  static constexpr int polls_per_clock = 32;  // polls between two reads of the clock
  static constexpr int rests = 64;            // sleeps without spinning before it is tried again

  bool succeed() {
    patience_ns_ = most_ns;
    return true;
  }
  bool is_time_to_try() {
    if (!can_ever_ || ++rested_ < rests) return false;
    rested_ = 0;
    patience_ns_ = most_ns;
    return true;
  }

  bool can_ever_;
  std::int64_t patience_ns_ = can_ever_ ? most_ns : 0;
  int rested_ = 0;
};

}  // namespace feedlane::ring
