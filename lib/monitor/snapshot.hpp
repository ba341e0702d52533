// SPDX-License-Identifier: Apache-2.0
// All statistics of a loader at one time. Two snapshots describe the interval between them.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "feedlane/observe.h"
#include "monitor/histogram.hpp"
#include "shm/segment.hpp"

namespace feedlane::monitor {

struct Snapshot {
  std::uint64_t at_ns = 0;
  feedlane_stats stats{};
  feedlane_loader_info info{};
  std::vector<feedlane_worker_stats> workers;
  // One row per worker; inline: one row.
  std::vector<Durations> exposed, work;
  // How long each worker's thread, and the trainer's first thread, was ready to run but not running, since it started;
  // -1: unknown.
  std::vector<std::int64_t> delays;
  std::int64_t trainer_delay = -1;
  // Per worker, the oldest task that was sent to it and is unanswered; `task` 0: none.
  std::vector<feedlane_batch_record> oldest;
  // Whether the workers' pids belong to this process's PID namespace.
  bool sees_processes = true;

  // Allocates memory for a loader's statistics, so that `take` cannot fail.
  void reserve(const shm::Segments& segments);
  void take(const shm::Segments& segments);
  // Reads `delays` and `trainer_delay` from /proc. Does nothing unless `sees_processes` is set.
  void take_delays(const shm::Segments& segments);

 private:
  void find_batches(const shm::Segments& segments);
};

// The statistics at the beginning of the newest epoch, and the time of its end. Thread safety: any thread.
class EpochFigures {
 public:
  void reserve(const shm::Segments& segments);
  void begin(const shm::Segments& segments);
  void end();
  // `after`: the current statistics. After the end of the epoch, `after.at_ns` is the time of the end. Throws
  // std::bad_alloc.
  void read(const shm::Segments& segments, Snapshot& before, Snapshot& after) const;

 private:
  mutable std::mutex mutex_;
  Snapshot begin_;
  std::uint64_t end_ns_ = 0;  // 0: in progress
};

// after - before of two counters. 0 if this is negative, because a worker may write any value into its counters.
inline std::uint64_t difference(std::uint64_t after, std::uint64_t before) {
  return after > before ? after - before : 0;
}
// How long a worker had a task in hand between two snapshots.
std::uint64_t busy_between(const Snapshot& before, const Snapshot& after, std::size_t worker);
// How long a worker was ready to run but not running between two snapshots; -1: unknown.
double delay_between(const Snapshot& before, const Snapshot& after, std::size_t worker);
// The counts between two snapshots, never negative.
Durations between(const Durations& before, const Durations& after);

}  // namespace feedlane::monitor
