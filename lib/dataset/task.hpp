// SPDX-License-Identifier: Apache-2.0
// The task in progress, in the form that callbacks see; used by workers and by inline mode.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "dataset/policy.hpp"
#include "feedlane/dataset.h"
#include "tensors/fields.hpp"
#include "tensors/slot.hpp"

namespace feedlane::dataset {

// The seeds of the message's rows, map-style only. `out` has one element for each row.
void fill_seeds(const shm::Geometry& geometry, const shm::TaskMessage& message, std::span<std::uint64_t> out);

// Allocates nothing after the first task of the largest size, unless the data set requests tensors of other shapes.
class Task {
 public:
  // `trainer`: the block that all workers read; nullptr in inline mode.
  void prepare(const tensors::Fields& fields, const shm::Geometry& geometry, std::uint32_t worker,
               feedlane_worker* owner, const shm::TrainerBlock* trainer = nullptr);
  // `list`: the slot's list in control, which holds indices, or the state to resume from.
  void open(const shm::TaskMessage& message, const std::int64_t* list, const tensors::Slot& slot);
  // Prefetches the lines of the slot's header that describe() will write.
  void prefetch_header() const;
  void close();
  // Unpoisons this task's tensors in the slot; see shm/asan.hpp.
  void unpoison();
  // Drops everything that the data set has put into the slot for this task, because the batch is made again.
  void start_over();

  [[nodiscard]] bool is_open() const { return open_; }
  [[nodiscard]] const feedlane_task& view() const { return view_; }
  [[nodiscard]] const shm::TaskMessage& message() const { return message_; }
  [[nodiscard]] const tensors::Slot& slot() const { return slot_; }
  [[nodiscard]] const shm::Geometry& geometry() const { return geometry_; }
  [[nodiscard]] bool is_iterable() const { return (geometry_.flags & shm::geometry_iterable) != 0; }

  // A count that changes when a tensor of view() gets another place or another shape.
  [[nodiscard]] std::uint64_t shapes() const { return shapes_; }

  // The data set's additions to the declared tensors. These functions reserve memory beyond the slot's reserved part as
  // needed. E_ARGUMENT; E_LIMIT with the slot size needed; E_MEMORY.
  Status shape_tensor(std::int32_t index, const feedlane_field& full, feedlane_tensor* out, Error& error);
  Status set_metadata(const void* bytes, std::uint64_t count, Error& error);
  Status set_state(const void* bytes, std::uint64_t count, Error& error);  // iterable
  // The number of rows that a whole-batch fetch has reported in view().rows; by default all requested rows.
  [[nodiscard]] std::uint64_t rows() const { return rows_; }

  // Adds a record of the sample at `position`: one record per sample, in order of position. E_LIMIT: no room.
  Status add_record(std::uint64_t position, shm::SampleOutcome outcome, const Attempts& attempts, bool whole,
                    Error& error);
  // For code that makes the batch itself: applies the policies to the sample at `position`, which has failed. AGAIN:
  // `index` is to be tried after `wait_ns`. OK: it is skipped. Otherwise the task is to fail; INTERRUPTED: as the
  // substitute function has returned.
  Status fail_sample(std::uint64_t position, const feedlane_error& failure, feedlane_dataset_substitute_fn substitute,
                     void* self, std::int64_t& index, std::int64_t& wait_ns, Error& error);
  // Ends the sample that was given to fail_sample, if it was made since. Call it before records() and skipped() are read,
  // and before describe().
  void end_sample();
  // The batch as a whole has failed: whether it is to be made again after `wait_ns`. There is no single sample to skip
  // or to replace.
  bool may_try_again(bool is_transient, Status code, const char* text, std::int64_t& wait_ns);
  [[nodiscard]] std::uint32_t records() const { return extras_.records; }
  [[nodiscard]] std::uint32_t skipped() const { return skipped_; }
  // Positions must be below this. An iterable task may take more samples than it makes rows.
  [[nodiscard]] std::uint64_t record_limit() const { return record_limit(message_.rows, is_iterable()); }
  static std::uint64_t record_limit(std::uint32_t rows, bool iterable) {
    return std::uint64_t{rows} * (iterable ? 2 : 1);
  }
  [[nodiscard]] bool may_skip() const { return (geometry_.flags & shm::geometry_skip) != 0; }
  [[nodiscard]] bool may_substitute() const { return (geometry_.flags & shm::geometry_substitute) != 0; }

  // Cuts the declared tensors to `rows` rows and describes all tensors in the slot's header. Returns their bytes.
  std::uint64_t describe(std::uint64_t rows);
  void describe_failure(std::int64_t position, bool transient, std::string_view text, std::string_view detail);

  // Iterable: samples taken from the shard in this epoch, before this task.
  [[nodiscard]] std::uint64_t shard_position() const { return shard_position_; }
  [[nodiscard]] std::uint64_t shard_seed(std::uint64_t position) const;
  // Counts `taken` samples that this task took.
  void advance_shard(std::uint64_t taken) { shard_position_ += taken; }

 private:
  Status reserve_up_to(std::uint64_t end, Error& error);
  Status allocate(std::uint64_t bytes, tensors::Extent& out, Error& error);
  Status copy_in(const char* argument, const void* bytes, std::uint64_t count, tensors::Extent& out, Error& error);
  void forget_given_back();
  void publish_tensors();
  void poison() const;
  void set_out();
  void add_whole_record();

  const tensors::Fields* fields_ = nullptr;
  shm::Geometry geometry_{};
  std::uint64_t shard_ = 0;
  bool open_ = false;
  bool unpoisoned_ = false;
  shm::TaskMessage message_{};
  tensors::Slot slot_{};
  std::vector<feedlane_tensor> tensors_;
  std::int64_t rows_as_declared_ = -1;          // rows of tensors_ if all are as declared; else -1
  std::vector<std::unique_ptr<char[]>> names_;  // of tensors that aren't declared
  std::vector<std::uint64_t> seeds_;
  std::vector<std::uint64_t> reserved_;  // per slot: bytes of payload that are known to be reserved
  const shm::TrainerBlock* trainer_ = nullptr;
  std::uint64_t shapes_ = 0;
  std::uint64_t given_back_ = 0;  // the trainer's counter for which `reserved_` is valid
  std::uint64_t used_ = 0;        // bytes of the slot's payload
  std::uint64_t rows_ = 0;
  std::uint32_t skipped_ = 0;
  std::uint64_t next_record_ = 0;
  FailingSample failing_;  // the sample that was given to fail_sample
  Attempts whole_;         // at the batch as a whole
  std::uint64_t shard_position_ = 0;
  tensors::Extras extras_;
  feedlane_task view_{};
};

}  // namespace feedlane::dataset
