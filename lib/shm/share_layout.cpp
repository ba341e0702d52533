// SPDX-License-Identifier: Apache-2.0
// Computes the offsets of a shared loader's regions.
#include "shm/share_layout.hpp"

#include <bit>

#include "shm/plan.hpp"

namespace feedlane::shm {

Status make_share_plan(const ShareGeometry& g, SharePlan& out, Error& error) {
  if (g.slots < 1 || g.slots > max_slots)
    return error.refuse(FEEDLANE_E_LIMIT, "share.slots", g.slots, max_slots, "share.slots is {}: must be 1 to {}",
                        g.slots, max_slots);
  if (!std::has_single_bit(g.capacity) || g.capacity > 2 * max_slots)
    return error.refuse(FEEDLANE_E_LIMIT, "share.capacity", g.capacity, 2 * max_slots,
                        "share.capacity is {}: must be a power of two and at most {}", g.capacity, 2 * max_slots);
  const auto align = [](std::uint64_t value, std::uint64_t alignment) {
    return (value + alignment - 1) & ~(alignment - 1);
  };
  SharePlan p;
  p.geometry = g;
  // The limits above keep every product below 2^56, so no sum can wrap.
  p.feeder = align(sizeof(SegmentHeader) + sizeof(ShareGeometry), writer_distance);
  p.entries = p.feeder + sizeof(FeederBlock);
  p.catalogue_bytes = align(p.entries + std::uint64_t{g.slots} * sizeof(CatalogueEntry), payload_alignment);
  p.block = align(sizeof(SegmentHeader) + sizeof(ShareGeometry), writer_distance);
  p.cells = p.block + sizeof(DeliveryBlock);
  p.delivery_bytes = align(p.cells + std::uint64_t{g.capacity} * delivery_cell_bytes, payload_alignment);
  p.row = align(sizeof(SegmentHeader), writer_distance);
  p.returned = p.row + sizeof(ConsumerRow);
  p.returns_bytes = align(p.returned + std::uint64_t{g.slots} * sizeof(Word64), payload_alignment);
  out = p;
  return FEEDLANE_OK;
}

}  // namespace feedlane::shm
