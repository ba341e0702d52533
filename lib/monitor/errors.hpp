// SPDX-License-Identifier: Apache-2.0
// Distinct errors with how often and when they occurred, in control, where monitors see them.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "feedlane/observe.h"
#include "shm/segment.hpp"

namespace feedlane::monitor {

// Counts errors and events. Those of one kind and code whose texts differ in numbers only are one. When all rows are taken, the
// one that has not occurred for the longest time makes room. Thread safety: one thread at a time; readers: any.
class ErrorTable {
 public:
  void use(const shm::Segments& segments) { rows_ = segments.error_rows(); }
  // Before `use` it does nothing. `kind`: FEEDLANE_EVENT_*, or 0 for what next returned.
  void note(std::int32_t kind, const Error& what);

 private:
  shm::ErrorRow& row_for(std::uint64_t key);

  shm::ErrorRow* rows_ = nullptr;
  std::uint64_t next_order_ = 1;
};

// The distinct error with this index, by first occurrence. END: there are fewer.
Status read_error(const shm::Segments& segments, std::int32_t index, feedlane_error_record& out);

}  // namespace feedlane::monitor
