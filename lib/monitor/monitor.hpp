// SPDX-License-Identifier: Apache-2.0
// The monitor: read-only access to a loader of another process.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "base/error.hpp"
#include "feedlane/monitor.h"
#include "monitor/snapshot.hpp"
#include "monitor/stats.hpp"
#include "shm/segment.hpp"

namespace feedlane::monitor {

// Maps both segments of the loader read-only. Does not affect the loader, and shows the last values after the loader
// has ended. Thread safety: any thread.
class Monitor {
 public:
  // Loaders of `pid` are numbered from 0, in the order of their control segments' descriptors. END: the process has at
  // most `nth` loaders.
  static Status open(std::int64_t pid, std::int32_t nth, std::unique_ptr<Monitor>& out, Error& error);

  [[nodiscard]] feedlane_stats stats() const { return read_stats(segments_); }
  Status worker_stats(std::int32_t worker, feedlane_worker_stats& out) const {
    return read_worker_stats(segments_, worker, out);
  }
  [[nodiscard]] const shm::Segments& segments() const { return segments_; }
  // `after`: the current statistics. `before`: those of the last call with `advances`, at first those of the opening.
  // Throws std::bad_alloc.
  void read(Snapshot& before, Snapshot& after, bool advances);

 private:
  Monitor() = default;
  void take(Snapshot& now) const;
  shm::Segments segments_;
  std::int64_t pid_ = 0;
  std::mutex mutex_;
  Snapshot seen_;
};

}  // namespace feedlane::monitor
