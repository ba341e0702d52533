// SPDX-License-Identifier: Apache-2.0
// Batch records: of slots, and in the trace. The loader's one thread writes them; any thread and any process reads.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "feedlane/observe.h"
#include "shm/segment.hpp"

namespace feedlane::monitor {

// Appends a copy of a slot's record. Without a trace it does nothing.
class TraceWriter {
 public:
  void use(const shm::Segments& segments);
  void append(const shm::BatchRecord& record, std::uint64_t released_ns);

 private:
  shm::TraceHead* head_ = nullptr;
  shm::BatchRecord* cells_ = nullptr;
  std::uint64_t capacity_ = 0;
};

// The batch of a slot. `out.task` is 0 if there is none. END past the last slot.
Status read_slot(const shm::Segments& segments, std::uint64_t slot, feedlane_batch_record& out);

// The batches of all slots, at most `cap`, out[0].size bytes apart. END: `cap` is 0.
Status read_slots(const shm::Segments& segments, feedlane_batch_record* out, std::uint64_t cap, std::uint64_t& count);

// Copies at most `cap` records of the trace with a sequence of at least `from`, `stride` bytes apart. END: there is none.
// E_STATE: there is no trace.
Status read_trace(const shm::Segments& segments, std::uint64_t from, feedlane_batch_record* out, std::uint64_t cap,
                  std::uint64_t& count);

}  // namespace feedlane::monitor
