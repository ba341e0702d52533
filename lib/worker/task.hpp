// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "arena/fields.hpp"
#include "arena/slot.hpp"
#include "base/error.hpp"

namespace feedlane::worker {

// The task in hand, in the form that callbacks see: used by worker processes and inline alike. Allocates nothing after
// the first task of the largest size.
class Task {
 public:
  void prepare(const arena::Fields& fields, std::uint64_t base_seed, feedlane_worker* owner);
  void open(const shm::TaskMessage& message, const std::int64_t* indices, const arena::Slot& slot);
  void close() { open_ = false; }

  [[nodiscard]] bool is_open() const { return open_; }
  [[nodiscard]] const feedlane_task& view() const { return view_; }
  [[nodiscard]] const shm::TaskMessage& message() const { return message_; }
  [[nodiscard]] const arena::Slot& slot() const { return slot_; }

  // Cuts the tensors to the rows that were made and describes them in the slot. Returns their bytes.
  std::uint64_t describe(std::int64_t rows);
  [[nodiscard]] const std::vector<feedlane_tensor>& tensors() const { return tensors_; }

 private:
  const arena::Fields* fields_ = nullptr;
  std::uint64_t base_seed_ = 0;
  bool open_ = false;
  shm::TaskMessage message_{};
  arena::Slot slot_{};
  std::vector<feedlane_tensor> tensors_;
  std::vector<std::uint64_t> seeds_;
  feedlane_task view_{};
};

// Runs `fetch`, or `get` row by row. After each row `keep_going(row)` is asked; any status but OK ends the run with it, and
// a later run with the same `row` goes on from there. Callback errors come back as E_SAMPLE, with error.sample when a row
// is to blame: then `row` is that row.
class DatasetRunner {
 public:
  // Copies the table. E_ARGUMENT if neither get nor fetch is there, E_ABI for a table of another header.
  Status take(const feedlane_dataset* dataset, const char* argument, Error& error);
  [[nodiscard]] const feedlane_dataset& table() const { return table_; }
  Status open(const feedlane_worker_info& info, Error& error);  // E_INIT
  void close();

  template <class KeepGoing>
  Status run(const Task& task, std::uint64_t& row, KeepGoing&& keep_going, Error& error) {
    if (table_.fetch != nullptr) return fetch(task, error);
    while (row < task.view().count) {
      if (const Status s = get(task, row, error); s != FEEDLANE_OK) return s;
      row++;
      if (row == task.view().count) break;
      if (const Status s = keep_going(row); s != FEEDLANE_OK) return s;
    }
    return FEEDLANE_OK;
  }

 private:
  Status get(const Task& task, std::uint64_t row_index, Error& error);
  Status fetch(const Task& task, Error& error);
  // What a callback reported, as our error with `code`.
  Status translate(Status code, Status returned, const feedlane_error& reported, const char* callback, Error& error);
  void reset_report();

  feedlane_dataset table_{};
  void* self_ = nullptr;
  bool is_open_ = false;
  feedlane_error report_{};
  std::vector<char> detail_;  // room for callbacks' tracebacks
};

}  // namespace feedlane::worker
