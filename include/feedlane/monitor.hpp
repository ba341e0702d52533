// SPDX-License-Identifier: Apache-2.0
/** @file monitor.hpp Reads the statistics of another process's loader. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "error.hpp"

namespace feedlane {
inline namespace v1 {

/** Reads the counters of a loader in another process of the same user, without affecting it. Thread safety: any thread. */
class Monitor {
 public:
  /** Opens loader `nth` of process `pid`, counted from 0; nullopt if there is none. Throws. */
  [[nodiscard]] static std::optional<Monitor> open(std::int64_t pid, int nth = 0) {
    return detail::or_raise([&](Error& error) { return open(pid, nth, error); });
  }
  /** The same without exceptions: the error is in `error`. */
  [[nodiscard]] static std::optional<Monitor> open(std::int64_t pid, int nth, Error& error) noexcept {
    Monitor monitor;
    const std::int32_t status =
        detail::checked(error, [&](feedlane_error* e) { return feedlane_monitor_open(pid, nth, &monitor.handle_, e); });
    if (status != FEEDLANE_OK) return std::nullopt;
    return monitor;
  }
  /** `other` becomes empty. */
  Monitor(Monitor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  /** Swaps the two. */
  Monitor& operator=(Monitor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;
  ~Monitor() { (void)feedlane_monitor_close(&handle_); }

  /** The loader's counters; after its end the last ones. */
  [[nodiscard]] feedlane_stats stats() const noexcept {
    feedlane_stats s{};
    s.size = sizeof s;
    (void)feedlane_monitor_get_stats(handle_, &s);
    return s;
  }
  /** Each worker's counters, by id. */
  [[nodiscard]] std::vector<feedlane_worker_stats> worker_stats() const {
    std::vector<feedlane_worker_stats> all;
    feedlane_worker_stats s{};
    s.size = sizeof s;
    for (std::int32_t w = 0; feedlane_monitor_get_worker_stats(handle_, w, &s) == FEEDLANE_OK; w++) all.push_back(s);
    return all;
  }
  /** The handle for the C interface; this object still owns it. */
  [[nodiscard]] const feedlane_monitor* c() const { return handle_; }

 private:
  Monitor() = default;
  feedlane_monitor* handle_ = nullptr;
};

}  // namespace v1
}  // namespace feedlane

#endif
