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

// Maps both segments of the loader for reading only. It does not affect the loader, and shows the last numbers after the
// loader has gone. Thread safety: any thread.
class Monitor {
 public:
  // Loaders of `pid` are numbered from 0 in the order of their control segments' descriptors. END: it has at most `nth`.
  static Status open(std::int64_t pid, std::int32_t nth, std::unique_ptr<Monitor>& out, Error& error);

  [[nodiscard]] feedlane_stats stats() const { return read_stats(segments_); }
  Status worker_stats(std::int32_t worker, feedlane_worker_stats& out) const {
    return read_worker_stats(segments_, worker, out);
  }
  [[nodiscard]] const shm::Segments& segments() const { return segments_; }
  // The figures of now, and of the last call that `advances`, at first of the opening. Throws std::bad_alloc.
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
