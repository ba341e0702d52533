// SPDX-License-Identifier: Apache-2.0
// Computes the offsets of a standalone ring's regions.
#include "shm/ring_layout.hpp"

#include <bit>

namespace feedlane::shm {

Status make_ring_plan(std::uint32_t message_bytes, std::uint32_t capacity, std::uint32_t lanes, RingPlan& out,
                      Error& error) {
  struct Range {
    const char* argument;
    std::uint32_t value, high;
  };
  for (const Range& r : {Range{"config.message_bytes", message_bytes, max_message_bytes},
                         {"config.capacity", capacity, max_ring_capacity},
                         {"config.lanes", lanes, max_ring_lanes}})
    if (r.value < 1 || r.value > r.high)
      return error.refuse(FEEDLANE_E_ARGUMENT, r.argument, r.value, r.value < 1 ? 1 : r.high,
                          "{} is {}: must be 1 to {}", r.argument, r.value, r.high);
  if (!std::has_single_bit(capacity))
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.capacity", capacity, std::bit_ceil(capacity),
                        "config.capacity is {}: must be a power of two", capacity);
  const auto align = [](std::uint64_t value, std::uint64_t alignment) {
    return (value + alignment - 1) & ~(alignment - 1);
  };
  RingPlan p;
  p.geometry.message_bytes = message_bytes;
  p.geometry.cell_bytes = static_cast<std::uint32_t>(align(message_bytes + sizeof(std::uint64_t), cell_line));
  p.geometry.capacity = capacity;
  p.geometry.lanes = lanes;
  // The limits above keep every product below 2^57, so no sum can wrap.
  p.receiver_block = align(sizeof(SegmentHeader) + sizeof(RingGeometry), writer_distance);
  p.receiver_rows = p.receiver_block + sizeof(ReceiverBlock);
  p.control_bytes = align(p.receiver_rows + lanes * sizeof(ReceiverRow), payload_alignment);
  p.sender_row = align(sizeof(SegmentHeader), writer_distance);
  p.cells = p.sender_row + sizeof(SenderRow);
  p.data_bytes = align(p.cells + std::uint64_t{p.geometry.cell_bytes} * capacity, payload_alignment);
  if (p.all_bytes() > std::uint64_t{1} << 46)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.capacity", p.all_bytes(), std::int64_t{1} << 46,
                        "the ring would take {} bytes: at most 2^46 are allowed", p.all_bytes());
  out = p;
  return FEEDLANE_OK;
}

}  // namespace feedlane::shm
