// SPDX-License-Identifier: Apache-2.0
// Runs a data set's callbacks to make a task's batch, and applies the loader's policies to samples that fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "dataset/policy.hpp"
#include "dataset/rows.hpp"
#include "dataset/task.hpp"
#include "feedlane/dataset.h"

namespace feedlane::dataset {

// The caller's functions for the time between samples and for the wait before a retry. If one returns a status other
// than OK, the run returns it. A later run with the same Progress continues from there.
class Pace {
 public:
  // Called with the position of the next sample, after each one. So it is a store and two loads, unless there is
  // something to look at. Relaxed: `look` reads again, and the position is for monitors and for blaming a sample.
  Status between(std::uint64_t position) {
    mark_.store(position, std::memory_order_relaxed);
    return first_.is_quiet() && second_.is_quiet() ? Status{FEEDLANE_OK} : look();
  }
  // The same, but looks in any case.
  Status check(std::uint64_t position) {
    mark_.store(position, std::memory_order_relaxed);
    return look();
  }
  virtual Status look() = 0;
  virtual Status pause(std::int64_t until_ns) = 0;

 protected:
  // A word that is at most `most` as long as there is nothing to look at.
  struct Watch {
    const std::atomic<std::uint64_t>& word;
    std::uint64_t most;
    [[nodiscard]] bool is_quiet() const { return word.load(std::memory_order_relaxed) <= most; }
  };
  Pace(std::atomic<std::uint64_t>& mark, Watch first, Watch second) : mark_(mark), first_(first), second_(second) {}
  ~Pace() = default;

 private:
  std::atomic<std::uint64_t>& mark_;
  Watch first_, second_;
};

// The progress of a task.
struct Progress {
  std::uint64_t position = 0;    // samples finished: made or skipped
  std::uint64_t made = 0;        // rows
  Attempts attempts;             // at the sample in progress
  std::int64_t retry_at_ns = 0;  // 0: at once
  // iterable
  bool shard_started = false;
  std::uint64_t to_skip = 0;   // samples of the shard that were delivered before
  std::uint32_t failures = 0;  // consecutive, while skipping them
  bool is_made = false;        // the batch is complete; a run that ended for lack of memory has only to save its state
};

// Sets what the geometry says of a worker: its kind of data set, retries, rank, shard and seed. `worker` is 0 without
// workers.
void set_by_geometry(feedlane_worker_info& info, const shm::Geometry& geometry, std::uint32_t worker);

class DatasetRunner {
 public:
  // Copies the table. E_ARGUMENT if it has no callback that makes samples, E_ABI for the table of an unknown header.
  Status take(const feedlane_dataset* dataset, const char* argument, Error& error);
  // E_ARGUMENT if the table lacks a callback that a map-style or an iterable loader needs.
  Status check_style(bool iterable, const char* argument, Error& error) const;
  [[nodiscard]] const feedlane_dataset& table() const { return table_; }
  Status open(const feedlane_worker_info& info, Error& error);  // E_INIT
  void close();

  // Makes the batch of `task`. OK: it has `progress.made` rows. END: the shard is exhausted. E_SAMPLE: a callback
  // failed. If a single sample failed, error.sample is its index and `progress.position` its position. E_INIT: a shard
  // can't be started.
  Status run(Task& task, Progress& progress, Pace& pace, Error& error);

 private:
  Status run_map(Task& task, Progress& p, Pace& pace, Error& error);
  Status run_iterable(Task& task, Progress& p, Pace& pace, Error& error);
  Status run_fetch(Task& task, Progress& p, Pace& pace, Error& error);
  Status start_shard(Task& task, Progress& p, Pace& pace, Error& error);
  Status skip_delivered(Task& task, Progress& p, Pace& pace, Error& error);
  Status fill_from_shard(Task& task, Progress& p, Pace& pace, Error& error);
  Status save_shard(Task& task, Error& error);

  Status get(const Task& task, Rows& rows, const Progress& p, Error& error);
  Status get_smooth(const Task& task, Rows& rows, Progress& p, Pace& pace, Status& stop, Error& error);
  Status refuse_sample(Status returned, std::int64_t index, Error& error);
  Status next(const Task& task, Rows& rows, const Progress& p, Error& error);
  Status fetch(Task& task, Error& error);

  // Applies the policies to a sample that failed. OK: the run continues. Otherwise the task fails with `error`.
  Status handle(Task& task, Progress& p, Error& error);
  void blame_sample(const Task& task, Progress& p, Error& error) const;
  bool choose_substitute(const Task& task, const Progress& p, std::int64_t& other);
  // Ends the sample in progress, which was made or skipped.
  Status finish_sample(Task& task, Progress& p, bool made, Error& error);

  // Turns a callback's report into an error with `code`.
  Status translate(Status code, Status returned, const feedlane_error& reported, const char* callback, Error& error);
  void reset_report();
  void renew_report();

  feedlane_dataset table_{};
  void* self_ = nullptr;
  feedlane_worker_info info_{};
  bool is_open_ = false;
  bool was_iterated_ = false;  // since `open`
  bool exhausted_ = false;
  feedlane_error report_{};
  std::vector<char> detail_;      // buffer for callbacks' tracebacks
  std::vector<std::byte> saved_;  // buffer for save
  Status last_code_ = FEEDLANE_OK;
};

}  // namespace feedlane::dataset
