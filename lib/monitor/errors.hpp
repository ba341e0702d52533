// SPDX-License-Identifier: Apache-2.0
// Distinct errors, with counts and times, in control, where monitors can read them.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "feedlane/observe.h"
#include "shm/segment.hpp"

namespace feedlane::monitor {

// Counts errors and events. Errors of one kind and code whose texts differ only in numbers share a row. When all rows
// are taken, a new error replaces the one that has not occurred for the longest time. Thread safety: one writer at a
// time; any thread may read.
class ErrorTable {
 public:
  void use(const shm::Segments& segments) { rows_ = segments.error_rows(); }
  // Does nothing before `use`. `kind`: FEEDLANE_EVENT_*, or 0 for an error that next returned.
  void note(std::int32_t kind, const Error& what);

 private:
  shm::ErrorRow& row_for(std::uint64_t key);

  shm::ErrorRow* rows_ = nullptr;
  std::uint64_t next_order_ = 1;
};

// The distinct error at this index, in order of first occurrence. END: there are fewer.
Status read_error(const shm::Segments& segments, std::int32_t index, feedlane_error_record& out);

}  // namespace feedlane::monitor
