// SPDX-License-Identifier: Apache-2.0
// The rows of a task's tensors, in the form that callbacks see. One object serves all rows of a task. Values that the
// rows share are computed once, and again only if a callback has changed a tensor's shape.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dataset/task.hpp"

namespace feedlane::dataset {

class Rows {
 public:
  explicit Rows(const Task& task) : task_(task) {
    row_.size = sizeof row_;
    row_.fields = fields_;
    row_.bytes = bytes_;
    row_.task = &task.view();
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  ~Rows() = default;

  // Row `number`, for the sample with this index and seed. Valid until the next call.
  const feedlane_row& at(std::uint64_t number, std::int64_t index, std::uint64_t seed) {
    if (shapes_ != task_.shapes()) find_places();
    for (std::int32_t f = 0; f < count_; f++) fields_[f] = places_[f] + number * bytes_[f];
    row_.index = index;
    row_.seed = seed;
    row_.row = number;
    return row_;
  }

 private:
  void find_places() {
    const feedlane_task& view = task_.view();
    shapes_ = task_.shapes();
    count_ = view.tensor_count;
    for (std::int32_t f = 0; f < count_; f++) {
      places_[f] = static_cast<std::byte*>(view.tensors[f].data);
      bytes_[f] = view.tensors[f].bytes / view.count;
    }
  }

  const Task& task_;
  std::uint64_t shapes_ = 0;  // an open task's count is at least 1
  std::int32_t count_ = 0;
  std::byte* places_[FEEDLANE_MAX_TENSORS];  // of row 0
  void* fields_[FEEDLANE_MAX_TENSORS];
  std::uint64_t bytes_[FEEDLANE_MAX_TENSORS];
  feedlane_row row_{};
};

}  // namespace feedlane::dataset
