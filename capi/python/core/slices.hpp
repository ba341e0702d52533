// SPDX-License-Identifier: Apache-2.0
// A wait in slices: each ends so soon that a signal that came just before it finds Python's handler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>

#include "feedlane.h"

namespace feedlane::python {

class Slices {
 public:
  explicit Slices(std::int64_t timeout_ns)
      : end_ns_(timeout_ns >= FEEDLANE_FOREVER / 2 ? FEEDLANE_FOREVER : now_ns() + timeout_ns) {}
  // Of the next slice; 0: the time is over.
  [[nodiscard]] std::int64_t next_ns() const {
    constexpr std::int64_t slice_ns = 200'000'000;
    return end_ns_ == FEEDLANE_FOREVER ? slice_ns : std::clamp<std::int64_t>(end_ns_ - now_ns(), 0, slice_ns);
  }

 private:
  static std::int64_t now_ns() {
    timespec now{};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
  std::int64_t end_ns_;
};

}  // namespace feedlane::python
