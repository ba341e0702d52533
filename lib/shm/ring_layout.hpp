// SPDX-License-Identifier: Apache-2.0
// The structs of a standalone ring in shared memory. Those of loaders are in shm/layout.hpp.
//
// control: written by the receiver alone. data: one segment per lane, created anew for each sender, which writes its
// row and its cells. So a sender can damage only its own messages, not the messages of another sender or of its
// successor.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "shm/layout.hpp"

namespace feedlane::shm {

// Follows the header of control: the numbers that determine the sizes of all segments.
struct RingGeometry {
  std::uint32_t message_bytes;
  std::uint32_t cell_bytes;
  std::uint32_t capacity;  // cells per lane, a power of two
  std::uint32_t lanes;
};
static_assert(sizeof(RingGeometry) == 16);

// control.
struct ReceiverBlock {
  alignas(writer_distance) Word32 sleeping;  // the receiver's doorbell flag
};
static_assert(sizeof(ReceiverBlock) == 128);

// control: one per lane.
struct ReceiverRow {
  alignas(writer_distance) Word64 position;  // position of the lane's consumer
};
static_assert(sizeof(ReceiverRow) == 128);

// data: written by the lane's sender.
struct SenderRow {
  alignas(writer_distance) Word32 sleeping;  // the sender's doorbell flag
};
static_assert(sizeof(SenderRow) == 128);

// Offsets of all regions: a pure function of the geometry.
struct RingPlan {
  RingGeometry geometry{};
  std::uint64_t receiver_block = 0;
  std::uint64_t receiver_rows = 0;
  std::uint64_t control_bytes = 0;
  std::uint64_t sender_row = 0;
  std::uint64_t cells = 0;
  std::uint64_t data_bytes = 0;  // of one lane
  // Size of all segments when every lane has a sender.
  [[nodiscard]] std::uint64_t all_bytes() const { return control_bytes + geometry.lanes * data_bytes; }
};

constexpr std::uint32_t max_message_bytes = 1u << 20;
constexpr std::uint32_t max_ring_capacity = 1u << 24;
constexpr std::uint32_t max_ring_lanes = 4096;

// E_ARGUMENT names the field of the config that is out of range.
Status make_ring_plan(std::uint32_t message_bytes, std::uint32_t capacity, std::uint32_t lanes, RingPlan& out,
                      Error& error);

}  // namespace feedlane::shm
