// SPDX-License-Identifier: Apache-2.0
// Batch records of slots and of the trace. One thread of the loader at a time writes them; any thread of any process
// may read them.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "feedlane/observe.h"
#include "shm/segment.hpp"

namespace feedlane::monitor {

// Appends a copy of a slot's record. Does nothing without a trace.
class TraceWriter {
 public:
  void use(const shm::Segments& segments);
  void append(const shm::BatchRecord& record, std::uint64_t released_ns);

 private:
  shm::TraceHead* head_ = nullptr;
  shm::BatchRecord* cells_ = nullptr;
  std::uint64_t capacity_ = 0;
};

// Reads the record of the batch in a slot. `out.task` is 0 if there is none. END past the last slot.
Status read_slot(const shm::Segments& segments, std::uint64_t slot, feedlane_batch_record& out);

// Reads the records of all slots, at most `cap`, into structs that are out[0].size bytes apart. END if `cap` is 0.
Status read_slots(const shm::Segments& segments, feedlane_batch_record* out, std::uint64_t cap, std::uint64_t& count);

// Copies at most `cap` records of the trace, with sequences from `from` on, into structs that are out[0].size bytes
// apart. END: there are no such records. E_STATE: there is no trace.
Status read_trace(const shm::Segments& segments, std::uint64_t from, feedlane_batch_record* out, std::uint64_t cap,
                  std::uint64_t& count);

}  // namespace feedlane::monitor
