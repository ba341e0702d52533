// SPDX-License-Identifier: Apache-2.0
// Adaptive spinning before a sleep. A wake-up costs tens of microseconds. Polling for a message that is about to arrive
// costs a fraction of one.
//
// Spinning pays only while the peer runs, which no call reports. With fewer processors than parties, spinning is
// off, because it would take a processor from a party that has work to do. Otherwise recent results decide. Each
// failure halves the time limit, down to none; each success restores it. Without a time limit, every `rests`th sleep
// tries again. Spinning affects only speed: the doorbell's flag stays clear while a thread spins, and after a
// failure the full sequence follows: flag, fence, sweep, sleep.
#pragma once

#include <sys/sysinfo.h>

#include <cstdint>

#include "os/clock.hpp"

namespace feedlane::ring {

// Lets the core's other hardware thread run. For loops that wait for another processor.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Spin {
 public:
  // About the cost of two wake-ups, a round trip, on virtual machines. If they are cheaper, a smaller value gains
  // nothing.
  static constexpr std::int64_t most_ns = 100'000;

  // `parties`: how many threads and processes may run at once.
  explicit Spin(std::uint32_t parties = 2)
      : processors_(static_cast<std::uint32_t>(::get_nprocs())), can_ever_(processors_ >= parties) {}
  // From now on so many parties may run at once.
  void expect(std::uint32_t parties) {
    if (can_ever_ == (processors_ >= parties)) return;
    can_ever_ = !can_ever_;
    patience_ns_ = can_ever_ ? most_ns : 0;
  }

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
  static constexpr int first_polls = 256;  // before the first relax, which takes as long as a message takes to arrive
  static constexpr int polls_per_clock = 32;  // polls between two reads of the clock
  static constexpr int rests = 64;            // sleeps without spinning before the next try

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

  std::uint32_t processors_;
  bool can_ever_;
  std::int64_t patience_ns_ = can_ever_ ? most_ns : 0;
  int rested_ = 0;
};

}  // namespace feedlane::ring
