// SPDX-License-Identifier: Apache-2.0
// A table of callbacks at work: makes batches out of tasks, with what the loader wants done about samples that fail.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "dataset/task.hpp"
#include "feedlane/dataset.h"

namespace feedlane::dataset {

// What happens between samples, and who waits out a retry's backoff. Any status but OK ends the run with it; a later run
// with the same progress goes on from there.
class Pace {
 public:
  virtual Status between(std::uint64_t position) = 0;
  virtual Status pause(std::int64_t until_ns) = 0;

 protected:
  ~Pace() = default;
};

// How far a task has come.
struct Progress {
  std::uint64_t position = 0;  // samples dealt with: made, skipped
  std::uint64_t made = 0;      // rows
  // the sample in hand
  std::uint32_t retries = 0;        // since the index was chosen
  std::uint32_t total_retries = 0;  // of all indices tried in its place
  std::uint32_t substitutes = 0;
  std::int64_t substitute = 0;
  std::int64_t retry_at_ns = 0;  // 0: at once
  // iterable
  bool shard_started = false;
  std::uint64_t to_skip = 0;   // samples of the shard that were delivered before
  std::uint32_t failures = 0;  // in a row, meanwhile
  bool is_made = false;        // only to be saved, for which memory was too short
};

// How long retry number `retry` of a sample, from 0, waits.
std::int64_t backoff_ns(const shm::Geometry& geometry, std::uint32_t retry);

class DatasetRunner {
 public:
  // Copies the table. E_ARGUMENT if it has no callback that makes samples, E_ABI for a table of another header.
  Status take(const feedlane_dataset* dataset, const char* argument, Error& error);
  // Whether the table has what a map-style or an iterable loader calls.
  Status check_style(bool iterable, const char* argument, Error& error) const;
  [[nodiscard]] const feedlane_dataset& table() const { return table_; }
  Status open(const feedlane_worker_info& info, Error& error);  // E_INIT
  void close();

  // Makes the batch of `task`. OK: `progress.made` rows are there. END: the shard is exhausted. Callback errors come back
  // as E_SAMPLE, with error.sample when one sample is to blame: that at `progress.position`; E_INIT if a shard can't be
  // started.
  Status run(Task& task, Progress& progress, Pace& pace, Error& error);

 private:
  Status run_map(Task& task, Progress& p, Pace& pace, Error& error);
  Status run_iterable(Task& task, Progress& p, Pace& pace, Error& error);
  Status run_fetch(Task& task, Progress& p, Pace& pace, Error& error);
  Status start_shard(Task& task, Progress& p, Pace& pace, Error& error);
  Status skip_delivered(Task& task, Progress& p, Pace& pace, Error& error);
  Status fill_from_shard(Task& task, Progress& p, Pace& pace, Error& error);
  Status save_shard(Task& task, Error& error);

  Status get(const Task& task, const Progress& p, Error& error);
  Status next(const Task& task, const Progress& p, Error& error);
  Status fetch(Task& task, Error& error);
  void fill_row(const Task& task, std::uint64_t row_number, feedlane_row& row, void** fields, std::uint64_t* bytes);

  // What is done about a sample that failed. OK: something, the run goes on; else `error` is the task's.
  Status handle(Task& task, Progress& p, Error& error);
  void note_whole(Task& task, const Progress& p);
  Status choose_substitute(const Task& task, Progress& p, Error& error);
  // The sample in hand is dealt with.
  Status finish_sample(Task& task, Progress& p, bool made, Error& error);

  // What a callback reported, as our error with `code`.
  Status translate(Status code, Status returned, const feedlane_error& reported, const char* callback, Error& error);
  void reset_report();

  feedlane_dataset table_{};
  void* self_ = nullptr;
  feedlane_worker_info info_{};
  bool is_open_ = false;
  bool was_iterated_ = false;  // since it was opened
  bool exhausted_ = false;
  feedlane_error report_{};
  std::vector<char> detail_;      // room for callbacks' tracebacks
  std::vector<std::byte> saved_;  // room for save
  Status last_code_ = FEEDLANE_OK;
  char last_text_[sizeof(shm::SampleRecord::text)] = {};  // of the sample in hand
};

}  // namespace feedlane::dataset
