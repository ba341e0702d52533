// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "shm/layout.hpp"

namespace feedlane::shm {

// Where everything lies in the two segments of a loader: a pure function of the geometry. The trainer makes the segments
// by it; a worker computes it again from the geometry that it finds, so that no offset is ever read from memory.
struct Plan {
  Geometry geometry{};

  // control
  std::uint64_t trainer_block = 0;
  std::uint64_t counters = 0;
  std::uint64_t trainer_rows = 0;
  std::uint64_t fields = 0;
  std::uint64_t config = 0;
  std::uint64_t index_lists = 0;
  std::uint64_t index_list_bytes = 0;
  std::uint64_t task_rings = 0;
  std::uint64_t ring_bytes = 0;  // of one task ring or result lane
  std::uint64_t control_bytes = 0;

  // data
  std::uint64_t worker_rows = 0;
  std::uint64_t result_lanes = 0;
  std::uint64_t slot_headers = 0;
  std::uint64_t records = 0;
  std::uint64_t record_bytes = 0;  // of one slot
  std::uint64_t payload = 0;
  std::uint64_t slot_stride = 0;
  std::uint64_t slot_reserved = 0;  // of it, memory from the start
  std::uint64_t data_bytes = 0;

  // Memory that is reserved from the start; the rest of data is address space until a tensor is put there.
  [[nodiscard]] std::uint64_t reserved_bytes() const {
    return control_bytes + payload + geometry.slots * slot_reserved;
  }
  [[nodiscard]] std::uint64_t payload_of(std::uint32_t slot) const { return payload + slot * slot_stride; }
};

// The next place where a slot's payload, or a part of it that is reserved, may end.
constexpr std::uint64_t align_payload(std::uint64_t bytes) {
  return (bytes + payload_alignment - 1) & ~std::uint64_t{payload_alignment - 1};
}

// Message bytes of a cell of a task ring or a result lane: 56 and the sequence word are one line.
constexpr std::uint32_t loader_cell_bytes = 64;

// Largest values that a geometry may have; keeps every sum below far from overflow.
constexpr std::uint32_t max_workers = 4096;
constexpr std::uint32_t max_slots = 1u << 20;
constexpr std::uint64_t max_slot_bytes = std::uint64_t{1} << 40;
constexpr std::uint64_t max_config_bytes = std::uint64_t{1} << 30;
constexpr std::uint32_t max_rows = 1u << 30;
constexpr std::uint64_t max_segment_bytes = std::uint64_t{1} << 46;

// E_LIMIT by name of the geometry's field that is out of range.
Status make_plan(const Geometry& geometry, Plan& out, Error& error);

}  // namespace feedlane::shm
