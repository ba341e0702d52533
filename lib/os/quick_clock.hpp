// SPDX-License-Identifier: Apache-2.0
// CLOCK_MONOTONIC, read through the processor's time stamp counter if the kernel's clock uses that counter.
#pragma once

#include <cstdint>

#include "os/clock.hpp"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace feedlane::os {

// A clock that differs from os::now_ns by at most a microsecond, for stamps that are taken several times per batch.
// os::now_ns reads the counter only after all earlier loads, so it waits for cache lines that are on their way from
// another processor; this clock doesn't. A thread extrapolates from its last exact reading for at most 100 us. So the
// counter's rate, which this class measures, matters little, and slewing of the clock or a suspended machine does no
// harm. In one thread the time never decreases. Thread safety: any thread.
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

  std::uint64_t ticks_ = 0;       // the counter at the last exact reading
  std::int64_t exact_ns_ = 0;     // the time at that reading
  std::uint64_t most_ticks_ = 0;  // how far it extrapolates; 0: the rate is not known
  std::uint64_t scale_ = 0;       // nanoseconds per tick, in units of 1 / 2^32
  std::int64_t last_ns_ = 0;
  std::uint64_t first_ticks_ = 0;  // the counter and the time when the measurement of the rate began
  std::int64_t first_ns_ = 0;

  // Initial-exec: its address needs no call. Its few words fit into the static TLS that the dynamic linker keeps for
  // libraries opened later.
  [[gnu::tls_model("initial-exec")]] static thread_local constinit QuickClock of_this_thread;
#endif
};

#if defined(__x86_64__)
[[gnu::tls_model("initial-exec")]] inline thread_local constinit QuickClock QuickClock::of_this_thread{};
#endif

}  // namespace feedlane::os
