// SPDX-License-Identifier: Apache-2.0
// Exact readings of the clock, and measurement of the counter's rate.
#include "os/quick_clock.hpp"

#if defined(__x86_64__)

#include <algorithm>
#include <fstream>
#include <string>

namespace feedlane::os {
namespace {

constexpr std::int64_t counts_on_ns = 100'000;
// Shortest and longest interval over which the rate is measured.
constexpr std::int64_t shortest_ns = 1'000'000;
constexpr std::int64_t longest_ns = 1'000'000'000;
// A reading of both clocks counts only if it took no longer than this, so nothing came between.
constexpr std::uint64_t most_ticks_between = 2'000;

// If the kernel uses the counter for its own clock, it has checked that the counter has one rate and agrees on all
// processors.
bool is_kernels_clock() {
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  return static_cast<bool>(file >> name) && name == "tsc";
}

}  // namespace

std::int64_t QuickClock::read_exactly() {
  static const bool is_usable = is_kernels_clock();
  const std::uint64_t before = __rdtsc();
  const std::int64_t now = os::now_ns();
  const std::uint64_t ticks = __rdtsc();
  if (is_usable && ticks - before <= most_ticks_between) {
    measure(ticks, now);
    ticks_ = ticks;
    exact_ns_ = now;
  }
  return last_ns_ = std::max(now, last_ns_);
}

void QuickClock::measure(std::uint64_t ticks, std::int64_t ns) {
  const std::int64_t passed_ns = ns - first_ns_;
  if (first_ns_ == 0 || passed_ns > longest_ns || ticks <= first_ticks_) {
    first_ticks_ = ticks;
    first_ns_ = ns;
  } else if (passed_ns >= shortest_ns) {
    const std::uint64_t passed = ticks - first_ticks_;
    scale_ = (static_cast<std::uint64_t>(passed_ns) << scale_bits) / passed;
    most_ticks_ = (static_cast<std::uint64_t>(counts_on_ns) << scale_bits) / std::max<std::uint64_t>(scale_, 1);
  }
}

}  // namespace feedlane::os

#endif
