// SPDX-License-Identifier: Apache-2.0
// A wait in slices: each ends so soon that a signal that came just before it finds Python's handler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>

#include "core.hpp"

namespace feedlane::python {

class Slices {
 public:
  explicit Slices(std::int64_t timeout_ns)
      : end_ns_(timeout_ns >= FEEDLANE_FOREVER / 2 ? FEEDLANE_FOREVER : now_ns() + timeout_ns) {}
  // Until the end; FEEDLANE_FOREVER; 0: the time is over.
  [[nodiscard]] std::int64_t left_ns() const {
    return end_ns_ == FEEDLANE_FOREVER ? FEEDLANE_FOREVER : std::max<std::int64_t>(end_ns_ - now_ns(), 0);
  }
  // Of the next slice; 0: the time is over.
  [[nodiscard]] std::int64_t next_ns() const { return std::min<std::int64_t>(left_ns(), 200'000'000); }

 private:
  static std::int64_t now_ns() {
    timespec now{};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
  std::int64_t end_ns_;
};

// Calls `try_it(timeout_ns)` until it returns something other than TIMEOUT and INTERRUPTED by a signal, or the time is
// over. The GIL is released only for waits. The status; INT32_MIN with an exception.
template <class Try>
std::int32_t wait_for(std::int64_t timeout_ns, Try&& try_it) {
  constexpr std::int32_t raised = INT32_MIN;
  std::int32_t s = try_it(0);
  if (s == FEEDLANE_TIMEOUT && timeout_ns != 0) {
    const Slices slices(timeout_ns);
    do {
      if (PyErr_CheckSignals() != 0) return raised;
      const std::int64_t slice = slices.next_ns();
      s = unlocked([&] { return try_it(slice); });
      if (s == FEEDLANE_TIMEOUT && slice == 0) break;
    } while (s == FEEDLANE_TIMEOUT || (s == FEEDLANE_INTERRUPTED && error_room()->os_errno != 0));
  }
  return s >= 0 || raise(s) != nullptr ? s : raised;
}

}  // namespace feedlane::python
