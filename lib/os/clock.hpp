// SPDX-License-Identifier: Apache-2.0
// The clock and deadlines.
#pragma once

#include <cstdint>
#include <ctime>

#include "feedlane/status.h"

namespace feedlane::os {

// CLOCK_MONOTONIC, which is the same for all processes of a machine.
inline std::int64_t now_ns() {
  timespec time{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// A point in time. A relative timeout is converted once, at the start of a call, so events during the call don't extend
// it.
class Deadline {
 public:
  static Deadline after(std::int64_t timeout_ns) {
    if (timeout_ns == FEEDLANE_FOREVER) return never();
    if (timeout_ns <= 0) return Deadline(0);
    const std::int64_t now = now_ns();
    return Deadline(timeout_ns > FEEDLANE_FOREVER - now ? FEEDLANE_FOREVER : now + timeout_ns);
  }
  static Deadline never() { return Deadline(FEEDLANE_FOREVER); }
  static Deadline at(std::int64_t time_ns) { return Deadline(time_ns); }

  [[nodiscard]] bool is_never() const { return at_ == FEEDLANE_FOREVER; }
  // Nanoseconds left, 0 once the deadline has passed. Reads no clock for at(0), which means "try once", and for
  // never().
  [[nodiscard]] std::int64_t remaining_ns() const {
    if (at_ == 0 || is_never()) return at_;
    const std::int64_t now = now_ns();
    return at_ > now ? at_ - now : 0;
  }
  [[nodiscard]] Deadline earlier(Deadline other) const { return other.at_ < at_ ? other : *this; }

 private:
  explicit Deadline(std::int64_t time_ns) : at_(time_ns) {}
  std::int64_t at_;
};

}  // namespace feedlane::os
