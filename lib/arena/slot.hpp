// SPDX-License-Identifier: Apache-2.0
// What a worker says of its slot, and how the trainer reads it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "arena/fields.hpp"
#include "base/error.hpp"
#include "shm/layout.hpp"

namespace feedlane::arena {

// A slot's memory, in either process.
struct Slot {
  shm::SlotHeader* header;
  std::byte* payload;
  std::uint64_t payload_offset;  // in the data segment
  std::uint64_t payload_bytes;
};

// Worker: describes the tensors that lie in the slot.
void write_batch(const Slot& slot, std::uint64_t task_id, const std::vector<feedlane_tensor>& tensors);
// Worker: says why there is no batch. A traceback goes into the payload, as much of it as fits.
void write_failure(const Slot& slot, std::uint64_t task_id, std::int64_t position, bool transient,
                   std::string_view text, std::string_view detail);

// Trainer: the tensors, after every word was read once and checked against the declared fields and the slot's bounds.
// E_CORRUPT names what doesn't hold.
Status read_batch(const Slot& slot, std::uint64_t task_id, const Fields& fields, std::int64_t rows,
                  std::vector<feedlane_tensor>& out, Error& error);
// Trainer: fills text, detail and transient; `position` is -1 unless within `rows`.
Status read_failure(const Slot& slot, std::uint64_t task_id, std::int64_t rows, std::int64_t& position, Error& out,
                    Error& error);

}  // namespace feedlane::arena
