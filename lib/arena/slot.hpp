// SPDX-License-Identifier: Apache-2.0
// What a worker says of its slot, and how the trainer reads it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "arena/fields.hpp"
#include "base/error.hpp"
#include "shm/layout.hpp"
#include "shm/segment.hpp"

namespace feedlane::arena {

// A slot's memory, in either process.
struct Slot {
  shm::SlotHeader* header = nullptr;
  std::byte* payload = nullptr;
  std::uint64_t payload_offset = 0;  // in the data segment
  std::uint64_t payload_bytes = 0;   // address space
  shm::SampleRecord* records = nullptr;
  std::uint32_t record_room = 0;
  std::uint32_t number = 0;
  int data_fd = -1;              // where more is reserved
  std::uint64_t state_room = 0;  // of a shard's saved state, at most

  static Slot of(const shm::Segments& segments, std::uint32_t slot);
};

// While it lives the slot's whole payload may be read: by the trainer, before it is known what is there. See
// shm/asan.hpp.
class Look {
 public:
  Look(const shm::Segments& segments, std::uint32_t slot, bool needed) : segments_(segments), slot_(slot), is_(needed) {
    if (is_) segments.permit_payload(slot);
  }
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;
  ~Look() {
    if (is_) segments_.forbid_payload(slot_);
  }

 private:
  const shm::Segments& segments_;
  std::uint32_t slot_;
  bool is_;
};

// A part of the payload. Offset and bytes 0: nothing.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// What a made batch has beyond its declared tensors.
struct Extras {
  std::uint64_t shaped = 0;  // bit t: tensor t has a shape of its own, or isn't declared
  Extent metadata;
  bool has_state = false;
  Extent state;
  std::uint32_t records = 0;
};

// Worker: describes the tensors that lie in the slot; of those that are as declared there is nothing to say.
void write_batch(const Slot& slot, std::uint64_t task_id, const std::vector<feedlane_tensor>& tensors,
                 const Extras& extras);
// Of a traceback at the start of the payload, at most.
std::uint64_t detail_room(const Slot& slot);
// Worker: says why there is no batch. A traceback goes into the payload, as much of it as fits: see detail_room. Memory
// for it has been reserved.
void write_failure(const Slot& slot, std::uint64_t task_id, std::int64_t position, bool transient,
                   std::string_view text, std::string_view detail, std::uint32_t records);

// A batch as the trainer found it: always the same slot's. Names of tensors that aren't declared live in `names`.
struct Made {
  std::vector<feedlane_tensor> tensors;
  std::vector<std::array<char, shm::name_bytes>> names;
  std::int64_t rows_as_declared = -1;   // of these tensors, if all are as declared, in the slot
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

// Trainer: the batch, after every word was read once and checked against the slot's bounds.
// Records speak of samples below `position_limit`. E_CORRUPT names what doesn't hold.
Status read_batch(const Slot& slot, std::uint64_t task_id, const Fields& fields, std::int64_t rows,
                  std::uint64_t position_limit, Made& out, Error& error);
// Trainer: fills text, detail and transient; `position` is -1 unless below `position_limit`; and the records.
Status read_failure(const Slot& slot, std::uint64_t task_id, std::uint64_t position_limit, std::int64_t& position,
                    Error& out, std::vector<shm::SampleRecord>& records, Error& error);

}  // namespace feedlane::arena
