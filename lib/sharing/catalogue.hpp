// SPDX-License-Identifier: Apache-2.0
// What lies in the slots that a feeder has delivered: written once a batch, read by every consumer of it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "feedlane/batch.h"
#include "feedlane/tensor.h"
#include "shm/segment.hpp"
#include "shm/share_layout.hpp"

namespace feedlane::sharing {

// Feeder: describes a batch that its loader has yielded. Before the slot's number is delivered.
void write_entry(const feedlane_batch& batch, const shm::Segments& segments, shm::CatalogueEntry& entry);

// Consumer: fills in `out`, whose arrays are those of `tensors` and of the mapping. `tensors` has room for
// FEEDLANE_MAX_TENSORS. Offsets are checked against the mapping. E_CORRUPT.
Status read_entry(const shm::CatalogueEntry& entry, std::uint32_t slot, const shm::Segments& segments,
                  std::vector<feedlane_tensor>& tensors, feedlane_batch& out, Error& error);

}  // namespace feedlane::sharing
