// SPDX-License-Identifier: Apache-2.0
/** @file progress.hpp A line on a terminal that shows the progress of an epoch. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>

#include "loader.hpp"

namespace feedlane {
inline namespace v1 {

/** The name of a FEEDLANE_BOUND_*: "trainer", "data", "worker", "slots", "starting", "processors", or "nothing". */
[[nodiscard]] inline const char* bound_name(std::int32_t bound) noexcept {
  switch (bound) {
    case FEEDLANE_BOUND_TRAINER: return "trainer";
    case FEEDLANE_BOUND_DATA: return "data";
    case FEEDLANE_BOUND_WORKER: return "worker";
    case FEEDLANE_BOUND_SLOTS: return "slots";
    case FEEDLANE_BOUND_STARTING: return "starting";
    case FEEDLANE_BOUND_PROCESSORS: return "processors";
    default: return "nothing";
  }
}

/**
 * Shows an epoch's progress: the number of batches, their rate, the share of time that next waited for them, and the
 * bottleneck.
 *
 *     feedlane::Progress progress(loader);
 *     for (const feedlane::Batch& batch : loader) {
 *       train(batch);
 *       progress.update();
 *     }
 *
 * On a terminal the line is rewritten at most four times a second. Otherwise one line is written at the end. Thread
 * safety: one thread at a time.
 */
class Progress {
 public:
  /** Shows the progress of `loader` on `out`. Throws. */
  explicit Progress(const Loader& loader, std::FILE* out = stderr)
      : monitor_(loader.monitor()), out_(out), is_terminal_(::isatty(::fileno(out)) == 1) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /** Writes the final line. */
  ~Progress() {
    write();
    std::fputc('\n', out_);
  }
  /** Call this after each batch: it rewrites the line when that is due. */
  void update() noexcept {
    if (!is_terminal_ || Clock::now() < next_) return;
    next_ = Clock::now() + std::chrono::milliseconds(250);
    write();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void write() const noexcept {
    const feedlane_diagnosis d = monitor_.diagnose();
    const feedlane_loader_info i = monitor_.info();
    const double seconds = static_cast<double>(d.interval_ns) / 1e9;
    const double waited =
        d.interval_ns == 0 ? 0 : 100 * static_cast<double>(d.exposed_ns) / static_cast<double>(d.interval_ns);
    std::fprintf(out_, "%sepoch %" PRId64 ": %" PRId64, is_terminal_ ? "\r" : "", i.epoch, i.batch);
    if (i.batches >= 0) std::fprintf(out_, " of %" PRId64, i.batches);
    std::fprintf(out_, " batches, %.4g/s, waits %.0f %%, bound: %s%s",
                 seconds == 0 ? 0 : static_cast<double>(d.batches) / seconds, waited, bound_name(d.bound),
                 is_terminal_ ? "   " : "");
    std::fflush(out_);
  }

  mutable Monitor monitor_;
  std::FILE* out_;
  bool is_terminal_;
  Clock::time_point next_{};
};

}  // namespace v1
}  // namespace feedlane

#endif
