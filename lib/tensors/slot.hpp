// SPDX-License-Identifier: Apache-2.0
// A slot's contents: a worker describes them in the slot's header, and the trainer reads and checks this description.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "feedlane/tensor.h"
#include "shm/layout.hpp"
#include "shm/segment.hpp"
#include "tensors/fields.hpp"

namespace feedlane::tensors {

// A slot's memory, as mapped by the trainer or by a worker.
struct Slot {
  shm::SlotHeader* header = nullptr;
  std::byte* payload = nullptr;
  std::uint64_t payload_offset = 0;  // in the data segment
  std::uint64_t payload_bytes = 0;   // address space, not all of which must have memory
  shm::SampleRecord* records = nullptr;
  std::uint32_t record_room = 0;
  std::uint32_t number = 0;
  int data_fd = -1;              // of the data segment, to reserve more payload
  std::uint64_t state_room = 0;  // largest saved state of a shard

  static Slot of(const shm::Segments& segments, std::uint32_t slot);
};

// Unpoisons the slot's entire payload for the lifetime of this object. The trainer needs this because it checks the
// header before it knows what the payload holds. See shm/asan.hpp.
class PayloadAccess {
 public:
  PayloadAccess(const shm::Segments& segments, std::uint32_t slot, bool needed)
      : segments_(segments), slot_(slot), needed_(needed) {
    if (needed_) segments.unpoison_payload(slot);
  }
  PayloadAccess(const PayloadAccess&) = delete;
  PayloadAccess& operator=(const PayloadAccess&) = delete;
  ~PayloadAccess() {
    if (needed_) segments_.poison_payload(slot_);
  }

 private:
  const shm::Segments& segments_;
  std::uint32_t slot_;
  bool needed_;
};

// A part of the payload. If there is none, offset and bytes are 0.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// A batch's contents in addition to its declared tensors.
struct Extras {
  std::uint64_t shaped = 0;  // bit t: tensor t differs from its declaration, or isn't declared
  Extent metadata;
  bool has_state = false;
  Extent state;
  std::uint32_t records = 0;
};

// Worker: describes the batch in the slot's header. Tensors that match their declarations need no record.
void write_batch(const Slot& slot, std::uint64_t task_id, const std::vector<feedlane_tensor>& tensors,
                 const Extras& extras);
// Size of the largest traceback that fits at the start of the payload.
std::uint64_t detail_room(const Slot& slot);
// Worker: describes why there is no batch. Writes the traceback `detail` to the payload, cut to detail_room. The caller
// has reserved memory for it there.
void write_failure(const Slot& slot, std::uint64_t task_id, std::int64_t position, bool transient,
                   std::string_view text, std::string_view detail, std::uint32_t records);

// A batch as the trainer has read it. Each slot reuses one object. `names` holds the names of undeclared tensors.
struct Made {
  std::vector<feedlane_tensor> tensors;
  std::vector<std::array<char, shm::name_bytes>> names;
  std::int64_t rows_as_declared = -1;   // rows of `tensors` if all match their declarations; else -1
  std::span<const std::byte> metadata;  // in place
  bool has_state = false;
  std::span<const std::byte> state;        // in place
  std::vector<shm::SampleRecord> records;  // by position

  [[nodiscard]] std::uint64_t skipped() const {
    std::uint64_t count = 0;
    for (const shm::SampleRecord& r : records)
      count += r.outcome == static_cast<std::int32_t>(shm::SampleOutcome::skipped) ? 1 : 0;
    return count;
  }
};

// Trainer: reads the batch. Reads every word once and checks it against the slot's bounds. Positions in records must be
// below `position_limit`. E_CORRUPT names the invalid word.
Status read_batch(const Slot& slot, std::uint64_t task_id, const Fields& fields, std::int64_t rows,
                  std::uint64_t position_limit, Made& out, Error& error);
// Trainer: fills `text`, `detail` and `transient` of `out`, and the records. `position` becomes -1 or a number below
// `position_limit`. Any other value is E_CORRUPT.
Status read_failure(const Slot& slot, std::uint64_t task_id, std::uint64_t position_limit, std::int64_t& position,
                    Error& out, std::vector<shm::SampleRecord>& records, Error& error);

}  // namespace feedlane::tensors
