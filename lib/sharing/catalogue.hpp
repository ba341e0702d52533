// SPDX-License-Identifier: Apache-2.0
// Descriptions of the batches in delivered slots. The feeder writes one per batch; each consumer of the batch reads it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "feedlane/batch.h"
#include "feedlane/tensor.h"
#include "shm/segment.hpp"
#include "shm/share_layout.hpp"

namespace feedlane::sharing {

// Feeder: describes a batch that its loader has yielded. Call it before the slot's number is delivered.
void write_entry(const feedlane_batch& batch, const shm::Segments& segments, shm::CatalogueEntry& entry);

// A consumer's private copy of a description, because a faulty feeder may change the catalogue at any time.
struct Described {
  std::vector<feedlane_tensor> tensors;
  std::vector<std::array<char, shm::name_bytes>> names;

  // Afterwards read_entry can't fail for lack of memory.
  void reserve() {
    tensors.reserve(FEEDLANE_MAX_TENSORS);
    names.reserve(FEEDLANE_MAX_TENSORS);
  }
};

// Consumer: fills in `out`, whose arrays lie in `described` and in the mapping. Each word of the entry is read once.
// Types, shapes, offsets and counts are checked, so that the entire batch lies in the mapping. E_CORRUPT.
Status read_entry(const shm::CatalogueEntry& entry, std::uint32_t slot, const shm::Segments& segments,
                  Described& described, feedlane_batch& out, Error& error);

}  // namespace feedlane::sharing
