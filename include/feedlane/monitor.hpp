// SPDX-License-Identifier: Apache-2.0
/** @file monitor.hpp Observes another process's loader: statistics, timings, trace, errors and bottleneck. */
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

/** Observes a loader in another process of the same user, without affecting it. Thread safety: any thread. */
class Monitor {
 public:
  /** Opens loader `nth` (from 0) of process `pid`; nullopt: there is none. Throws. */
  [[nodiscard]] static std::optional<Monitor> open(std::int64_t pid, int nth = 0) {
    return detail::or_raise([&](Error& error) { return open(pid, nth, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  [[nodiscard]] static std::optional<Monitor> open(std::int64_t pid, int nth, Error& error) noexcept {
    Monitor monitor;
    const std::int32_t status =
        detail::checked(error, [&](feedlane_error* e) { return feedlane_monitor_open(pid, nth, &monitor.handle_, e); });
    if (status != FEEDLANE_OK) return std::nullopt;
    return monitor;
  }
  /** `other` becomes empty. */
  Monitor(Monitor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  /** Swaps the two objects. */
  Monitor& operator=(Monitor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;
  ~Monitor() { (void)feedlane_monitor_close(&handle_); }

  /** The loader's counters; after the loader's end, their last values. */
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
  /** The loader's configuration and its position in the epoch. */
  [[nodiscard]] feedlane_loader_info info() const noexcept {
    auto i = detail::sized<feedlane_loader_info>();
    (void)feedlane_monitor_get_info(handle_, &i);
    return i;
  }
  /** How long each step took, for batches of one worker or, with -1, for all batches. */
  [[nodiscard]] feedlane_timings timings(std::int32_t worker = -1) const noexcept {
    auto t = detail::sized<feedlane_timings>();
    (void)feedlane_monitor_get_timings(handle_, worker, &t);
    return t;
  }
  /** The current or last batch of each slot; `task` is 0 for a slot that was not used yet or is being reused. */
  [[nodiscard]] std::vector<feedlane_batch_record> slots() const {
    std::vector<feedlane_batch_record> all;
    auto r = detail::sized<feedlane_batch_record>();
    for (std::uint64_t slot = 0; feedlane_monitor_get_slot(handle_, slot, &r) == FEEDLANE_OK; slot++) all.push_back(r);
    return all;
  }
  /** The trace's records whose sequence is at least `from`, oldest first. Empty: none, or config.trace is 0. */
  [[nodiscard]] std::vector<feedlane_batch_record> trace(std::uint64_t from = 0) const {
    std::vector<feedlane_batch_record> all(info().trace, detail::sized<feedlane_batch_record>());
    std::uint64_t count = 0;
    if (all.empty() || feedlane_monitor_get_trace(handle_, from, all.data(), all.size(), &count) != FEEDLANE_OK)
      count = 0;
    all.resize(count);
    return all;
  }
  /** Distinct errors, in the order of first occurrence. */
  [[nodiscard]] std::vector<feedlane_error_record> errors() const {
    std::vector<feedlane_error_record> all;
    auto e = detail::sized<feedlane_error_record>();
    for (std::int32_t i = 0; feedlane_monitor_get_error(handle_, i, &e) == FEEDLANE_OK; i++) all.push_back(e);
    return all;
  }
  /** The loader's bottleneck since the last call; in the first call, since the monitor was opened. */
  [[nodiscard]] feedlane_diagnosis diagnose() noexcept {
    auto d = detail::sized<feedlane_diagnosis>();
    (void)feedlane_monitor_diagnose(handle_, &d);
    return d;
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
