// SPDX-License-Identifier: Apache-2.0
/** @file monitor.hpp Observes a loader, here or in another process: statistics, timings, trace, errors, bottleneck. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"

namespace feedlane {
inline namespace v1 {

/** Observes a loader of this process, or of another one of the same user, without affecting it. Thread safety: any
 *  thread. */
class Monitor {
 public:
  /** Opens the loader of a handle of the C interface, see Loader::monitor. Throws. */
  [[nodiscard]] static Monitor of(feedlane_loader* loader) {
    return *detail::or_raise([&](Error& error) { return of(loader, error); });
  }
  /** Non-throwing form: on failure nullopt, with the error in `error`. */
  [[nodiscard]] static std::optional<Monitor> of(feedlane_loader* loader, Error& error) noexcept {
    Monitor monitor;
    detail::checked(error, [&](feedlane_error* e) { return feedlane_monitor_of(loader, &monitor.handle_, e); });
    if (error) return std::nullopt;
    return monitor;
  }
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
  ~Monitor() { (void)feedlane_monitor_destroy(&handle_); }

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
  [[nodiscard]] std::vector<feedlane_batch_record> slots() const { return records(FEEDLANE_SLOTS, stats().slots); }
  /** The trace's records whose sequence is at least `from`, oldest first. Empty: none, or config.trace is 0. */
  [[nodiscard]] std::vector<feedlane_batch_record> trace(std::uint64_t from = 0) const {
    return records(from, info().trace);
  }
  /** Distinct errors, in the order of first occurrence. */
  [[nodiscard]] std::vector<feedlane_error_record> errors() const {
    std::vector<feedlane_error_record> all;
    auto e = detail::sized<feedlane_error_record>();
    for (std::int32_t i = 0; feedlane_monitor_get_error(handle_, i, &e) == FEEDLANE_OK; i++) all.push_back(e);
    return all;
  }
  /** The bottleneck. For a loader of this process: of the current epoch so far, or of the newest epoch. For a loader of
   *  another process: of the time since the previous call or, at first, since the monitor was opened. */
  [[nodiscard]] feedlane_diagnosis diagnose() noexcept {
    auto d = detail::sized<feedlane_diagnosis>();
    (void)feedlane_monitor_diagnose(handle_, &d);
    return d;
  }
  /** A short report on the same interval: rates, waits, workers, bottleneck and what to change. */
  [[nodiscard]] std::string report() const {
    std::string text(4096, '\0');
    std::uint64_t bytes = 0;
    while (feedlane_monitor_report(handle_, text.data(), text.size(), &bytes, nullptr) == FEEDLANE_E_LIMIT)
      text.resize(static_cast<std::size_t>(bytes) + 1024);  // it may grow before the next call
    text.resize(static_cast<std::size_t>(bytes));
    return text;
  }
  /** The handle for the C interface; this object still owns it. */
  [[nodiscard]] const feedlane_monitor* c() const { return handle_; }

 private:
  Monitor() = default;
  [[nodiscard]] std::vector<feedlane_batch_record> records(std::uint64_t from, std::uint64_t most) const {
    std::vector<feedlane_batch_record> all(static_cast<std::size_t>(most), detail::sized<feedlane_batch_record>());
    std::uint64_t count = 0;
    if (all.empty() || feedlane_monitor_get_trace(handle_, from, all.data(), all.size(), &count) != FEEDLANE_OK)
      count = 0;
    all.resize(static_cast<std::size_t>(count));
    return all;
  }
  feedlane_monitor* handle_ = nullptr;
};

/** Reads ring `nth` (from 0) of process `pid`, see feedlane_monitor_ring. nullopt: there is none, or an error, which is
 *  in `error`. */
[[nodiscard]] inline std::optional<feedlane_ring_info> ring_info(std::int64_t pid, int nth, Error& error) noexcept {
  auto info = detail::sized<feedlane_ring_info>();
  const std::int32_t status =
      detail::checked(error, [&](feedlane_error* e) { return feedlane_monitor_ring(pid, nth, &info, e); });
  if (status != FEEDLANE_OK) return std::nullopt;
  return info;
}
/** Throwing form of the above. */
[[nodiscard]] inline std::optional<feedlane_ring_info> ring_info(std::int64_t pid, int nth = 0) {
  return detail::or_raise([&](Error& error) { return ring_info(pid, nth, error); });
}

/** An arena of another process, see feedlane_monitor_arena. */
struct ArenaInfo {
  feedlane_arena_stats stats;                  ///< of the whole arena
  std::vector<feedlane_arena_member> members;  ///< its owner and its members
};
/** Reads arena `nth` (from 0) of process `pid`, its owner. nullopt: there is none, or an error, which is in `error`. */
[[nodiscard]] inline std::optional<ArenaInfo> arena_info(std::int64_t pid, int nth, Error& error) {
  ArenaInfo info{detail::sized<feedlane_arena_stats>(), {}};
  std::uint64_t count = 16;
  do {  // again if there are more members than room
    info.members.assign(static_cast<std::size_t>(count), detail::sized<feedlane_arena_member>());
    const std::int32_t status = detail::checked(error, [&](feedlane_error* e) {
      return feedlane_monitor_arena(pid, nth, &info.stats, info.members.data(), info.members.size(), &count, e);
    });
    if (status != FEEDLANE_OK) return std::nullopt;
  } while (count > info.members.size());
  info.members.resize(static_cast<std::size_t>(count));
  return info;
}
/** Throwing form of the above. */
[[nodiscard]] inline std::optional<ArenaInfo> arena_info(std::int64_t pid, int nth = 0) {
  return detail::or_raise([&](Error& error) { return arena_info(pid, nth, error); });
}

}  // namespace v1
}  // namespace feedlane

#endif
