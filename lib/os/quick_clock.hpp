// SPDX-License-Identifier: Apache-2.0
// CLOCK_MONOTONIC, read by the processor's time stamp counter where the kernel's clock is that counter.
#pragma once

#include <cstdint>

#include "os/clock.hpp"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace feedlane::os {

// The same time as now_ns, within a microsecond, for stamps that are taken several times a batch. now_ns orders the counter's
// read after all earlier loads, and so waits for cache lines on their way from another processor; this does not. From a thread's
// last exact reading it counts on for 100 us at most, so the counter's rate, which it measures itself, matters little, and a
// clock that is slewed or a machine that was suspended does no harm. In one thread it never decreases. Thread safety: any
// thread.
class QuickClock {
 public:
  static std::int64_t now_ns() {
#if defined(__x86_64__)
    QuickClock& own = of_this_thread;
    const std::uint64_t passed = __rdtsc() - own.ticks_;
    if (passed >= own.most_ticks_) [[unlikely]]
      return own.read_exactly();
    const std::int64_t now = own.exact_ns_ + static_cast<std::int64_t>((passed * own.scale_) >> scale_bits);
    return own.last_ns_ = now > own.last_ns_ ? now : own.last_ns_;
#else
    return os::now_ns();
#endif
  }

 private:
#if defined(__x86_64__)
  static constexpr unsigned scale_bits = 32;

  std::int64_t read_exactly();
  void measure(std::uint64_t ticks, std::int64_t ns);

  std::uint64_t ticks_ = 0;       // of the counter, and
  std::int64_t exact_ns_ = 0;     // the time then
  std::uint64_t most_ticks_ = 0;  // as far as it counts on; 0: the rate is not known
  std::uint64_t scale_ = 0;       // nanoseconds a tick, in 1 / 2^32
  std::int64_t last_ns_ = 0;
  std::uint64_t first_ticks_ = 0;  // where the measurement of the rate began
  std::int64_t first_ns_ = 0;

  // Initial-exec: without a call for its address. Its few words are within what the loader keeps for opened libraries.
  [[gnu::tls_model("initial-exec")]] static thread_local constinit QuickClock of_this_thread;
#endif
};

#if defined(__x86_64__)
[[gnu::tls_model("initial-exec")]] inline thread_local constinit QuickClock QuickClock::of_this_thread{};
#endif

}  // namespace feedlane::os
