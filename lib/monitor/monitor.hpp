// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "feedlane/monitor.h"
#include "monitor/stats.hpp"
#include "shm/segment.hpp"

namespace feedlane::monitor {

// A loader of another process, looked at: both of its segments, mapped for reading only. It has no part in what the loader
// does, and goes on showing the last numbers when the loader is gone. Any thread.
class Monitor {
 public:
  // The loaders of `pid` are counted in the order of their control segments' descriptors. END: it has no more than `nth`.
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
