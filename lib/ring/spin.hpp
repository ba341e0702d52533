// SPDX-License-Identifier: Apache-2.0
// Looking again and again for a while before going to sleep: a wake-up costs tens of microseconds, a message that is about
// to come a fraction of one.
//
// It pays only where the peer runs meanwhile, and that can't be asked: with fewer processors in the machine than parties it
// takes one from somebody who has work to do, so it isn't done there; else what became of the last times says it. Each time
// in vain halves the patience, down to none; each success restores it. Now and then it is tried again. Nothing depends on it
// but time: the flag of the doorbell is down while one looks, and whoever gives up goes the whole way: flag, fence, sweep,
// sleep.
#pragma once

#include <sys/sysinfo.h>

#include <cstdint>

#include "os/clock.hpp"

namespace feedlane::ring {

// For a loop that waits for another processor: leaves the core to its other thread for a moment.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Spin {
 public:
  // About what two wake-ups cost, there and back, on virtual machines; less where they are cheaper is no use to anybody.
  static constexpr std::int64_t most_ns = 100'000;

  // `parties`: how many there are that may run at once.
  explicit Spin(std::uint32_t parties = 2) : can_ever_(static_cast<std::uint32_t>(::get_nprocs()) >= parties) {}

  // Whether `ready` became true before the patience, or the time until `deadline`, was over.
  template <class F>
  bool until(os::Deadline deadline, F&& ready) {
    if (patience_ns_ == 0 && !is_time_to_try()) return false;
    const std::int64_t left = deadline.remaining_ns();
    if (left == 0) return false;
    for (int i = 0; i < hasty_looks; i++)
      if (ready()) return succeed();
    const std::int64_t end = os::now_ns() + (left < patience_ns_ ? left : patience_ns_);
    do {
      for (int i = 0; i < looks_a_clock; i++) {
        if (ready()) return succeed();
        relax();
      }
    } while (os::now_ns() < end);
    patience_ns_ = patience_ns_ / 2 < least_ns ? 0 : patience_ns_ / 2;
    return false;
  }

 private:
  static constexpr std::int64_t least_ns = 2'000;
  static constexpr int hasty_looks = 256;   // before the first relax, which takes as long as a message takes to come
  static constexpr int looks_a_clock = 32;  // looks between two looks at the clock
  static constexpr int rests = 64;          // sleeps without looking before it is tried again

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
