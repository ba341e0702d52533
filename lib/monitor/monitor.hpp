// SPDX-License-Identifier: Apache-2.0
// The monitor: read-only access to a loader of another process.
#pragma once

#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "feedlane/monitor.h"
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

 private:
  Monitor() = default;
  shm::Segments segments_;
};

}  // namespace feedlane::monitor
