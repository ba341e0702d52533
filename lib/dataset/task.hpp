// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "arena/fields.hpp"
#include "arena/slot.hpp"
#include "base/error.hpp"

namespace feedlane::dataset {

// The task in hand, in the form that callbacks see: used by worker processes and inline alike. Allocates nothing after
// the first task of the largest size, unless it is asked for tensors of other shapes.
class Task {
 public:
  // `trainer`: what it tells all workers; nullptr inline.
  void prepare(const arena::Fields& fields, const shm::Geometry& geometry, std::uint32_t worker, feedlane_worker* owner,
               const shm::TrainerBlock* trainer = nullptr);
  // `list`: the slot's list in control: indices, or the state to go on from.
  void open(const shm::TaskMessage& message, const std::int64_t* list, const arena::Slot& slot);
  // Asks for the lines in which it is said what was made, long before.
  void prefetch_header() const;
  void close();
  // From here on the slot's memory is the task's: see shm/asan.hpp.
  void permit();
  // Forgets what the data set has said of this task so far: it is made anew.
  void start_over();

  [[nodiscard]] bool is_open() const { return open_; }
  [[nodiscard]] const feedlane_task& view() const { return view_; }
  [[nodiscard]] const shm::TaskMessage& message() const { return message_; }
  [[nodiscard]] const arena::Slot& slot() const { return slot_; }
  [[nodiscard]] const shm::Geometry& geometry() const { return geometry_; }
  [[nodiscard]] bool is_iterable() const { return (geometry_.flags & shm::geometry_iterable) != 0; }

  // What the data set puts into the slot beside the declared tensors. Memory beyond the slot's reserved part is reserved
  // here. E_ARGUMENT, E_LIMIT with the slot size needed, E_MEMORY.
  Status shape_tensor(std::int32_t index, const feedlane_field& full, feedlane_tensor* out, Error& error);
  Status set_metadata(const void* bytes, std::uint64_t count, Error& error);
  Status set_state(const void* bytes, std::uint64_t count, Error& error);  // iterable
  // How many rows a whole-batch fetch has made; without it all that were asked for.
  Status set_rows(std::uint64_t rows, Error& error);
  [[nodiscard]] std::uint64_t rows() const { return rows_; }

  // What became of the sample at `position`: one record a sample, in order of position. E_LIMIT: no room.
  Status note(std::uint64_t position, shm::SampleOutcome outcome, std::int32_t code, std::uint32_t retries,
              std::int64_t substitute, std::string_view text, bool whole, Error& error);
  // The same from a data set that has policies of its own, checked.
  Status record(std::uint64_t position, std::int32_t outcome, std::int32_t code, std::uint32_t retries,
                std::int64_t substitute, std::string_view text, Error& error);
  [[nodiscard]] std::uint32_t notes() const { return extras_.records; }
  [[nodiscard]] std::uint32_t skipped() const { return skipped_; }
  // Positions are below this. An iterable task may take more samples than it makes rows.
  [[nodiscard]] std::uint64_t note_limit() const { return note_limit(message_.rows, is_iterable()); }
  static std::uint64_t note_limit(std::uint32_t rows, bool iterable) {
    return std::uint64_t{rows} * (iterable ? 2 : 1);
  }
  [[nodiscard]] bool may_skip() const { return (geometry_.flags & shm::geometry_skip) != 0; }
  [[nodiscard]] bool may_substitute() const { return (geometry_.flags & shm::geometry_substitute) != 0; }

  // Cuts the declared tensors to the rows that were made and describes all in the slot. Returns their bytes.
  std::uint64_t describe(std::uint64_t rows);
  void describe_failure(std::int64_t position, bool transient, std::string_view text, std::string_view detail);

  // Iterable: samples taken from the shard in this epoch, before this task.
  [[nodiscard]] std::uint64_t shard_position() const { return shard_position_; }
  [[nodiscard]] std::uint64_t shard_seed(std::uint64_t position) const;
  // This task took so many.
  void advance_shard(std::uint64_t taken) { shard_position_ += taken; }

 private:
  Status reserve_up_to(std::uint64_t end, Error& error);
  Status allocate(std::uint64_t bytes, arena::Extent& out, Error& error);
  Status copy_in(const char* argument, const void* bytes, std::uint64_t count, arena::Extent& out, Error& error);
  void forget_given_back();
  void publish_tensors();
  void forbid() const;
  void set_out();

  const arena::Fields* fields_ = nullptr;
  shm::Geometry geometry_{};
  std::uint32_t worker_ = 0;
  bool open_ = false;
  bool permitted_ = false;
  shm::TaskMessage message_{};
  arena::Slot slot_{};
  std::vector<feedlane_tensor> tensors_;
  std::int64_t rows_as_declared_ = -1;          // of these, if all are as declared
  std::vector<std::unique_ptr<char[]>> names_;  // of tensors that aren't declared
  std::vector<std::uint64_t> seeds_;
  std::vector<std::uint64_t> reserved_;  // of each slot's payload, as far as this side knows
  const shm::TrainerBlock* trainer_ = nullptr;
  std::uint64_t given_back_ = 0;  // as of what `reserved_` says
  std::uint64_t used_ = 0;        // of the slot's payload
  std::uint64_t rows_ = 0;
  std::uint32_t skipped_ = 0;
  std::uint64_t next_note_ = 0;
  std::uint64_t shard_position_ = 0;
  arena::Extras extras_;
  feedlane_task view_{};
};

}  // namespace feedlane::dataset
