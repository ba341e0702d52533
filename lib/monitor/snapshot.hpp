// SPDX-License-Identifier: Apache-2.0
// All figures of a loader at one moment, for what happened between two.
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
  // Of each worker; inline: one row.
  std::vector<Durations> exposed, work;
  // For how long each worker's thread, and the trainer's first one, was ready to run and did not, since it began; -1: not known.
  std::vector<std::int64_t> delays;
  std::int64_t trainer_delay = -1;
  // Of each worker, the oldest task that it was sent and has not answered; `task` 0: none.
  std::vector<feedlane_batch_record> oldest;
  // Whether the workers' pids are those of this process's PID namespace.
  bool sees_processes = true;

  // Memory for a loader's figures, so that `take` cannot fail.
  void reserve(const shm::Segments& segments);
  void take(const shm::Segments& segments);
  // Reads `delays` from /proc. Only for processes that `sees_processes`.
  void take_delays(const shm::Segments& segments);

 private:
  void find_batches(const shm::Segments& segments);
};

// The figures at the beginning of the newest epoch, and when it ended. Thread safety: any thread.
class EpochFigures {
 public:
  void reserve(const shm::Segments& segments);
  void begin(const shm::Segments& segments);
  void end();
  // `after`: as of now, or, in its time, of the end of the epoch. Throws std::bad_alloc.
  void read(const shm::Segments& segments, Snapshot& before, Snapshot& after) const;

 private:
  mutable std::mutex mutex_;
  Snapshot begin_;
  std::uint64_t end_ns_ = 0;  // 0: it is not over
};

// after - before of two counters; 0 where that is negative, because a worker wrote one of them.
inline std::uint64_t difference(std::uint64_t after, std::uint64_t before) {
  return after > before ? after - before : 0;
}
// For how long a worker had tasks in hand between two snapshots.
std::uint64_t busy_between(const Snapshot& before, const Snapshot& after, std::size_t worker);
// For how long a worker was ready to run and did not between two snapshots, or -1 if either does not
// know it.
double delay_between(const Snapshot& before, const Snapshot& after, std::size_t worker);
// What was counted between two snapshots. Never negative.
Durations between(const Durations& before, const Durations& after);

}  // namespace feedlane::monitor
