// SPDX-License-Identifier: Apache-2.0
// The plan: offsets of all regions of a loader's two segments.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "shm/layout.hpp"

namespace feedlane::shm {

// A pure function of the geometry. The trainer creates the segments according to it. A worker computes it again from
// the geometry in control, so no offset is ever read from shared memory.
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
  std::uint64_t facts = 0;
  std::uint64_t timings = 0;
  std::uint64_t errors = 0;
  std::uint64_t slot_records = 0;
  std::uint64_t trace_head = 0;
  std::uint64_t trace = 0;
  std::uint64_t control_bytes = 0;

  // data
  std::uint64_t worker_rows = 0;
  std::uint64_t result_lanes = 0;
  std::uint64_t slot_headers = 0;
  std::uint64_t records = 0;
  std::uint64_t record_bytes = 0;  // of one slot
  std::uint64_t payload = 0;
  std::uint64_t slot_stride = 0;
  std::uint64_t slot_reserved = 0;  // how many of its first bytes are reserved at creation
  std::uint64_t data_bytes = 0;

  // Rows of timings: one per worker; without workers, one for the trainer's own batches.
  [[nodiscard]] std::uint64_t timing_rows() const { return geometry.workers == 0 ? 1 : geometry.workers; }
  // Memory that is reserved at creation. The rest of data is address space until a tensor is put there.
  [[nodiscard]] std::uint64_t reserved_bytes() const {
    return control_bytes + payload + geometry.slots * slot_reserved;
  }
  [[nodiscard]] std::uint64_t payload_of(std::uint32_t slot) const { return payload + slot * slot_stride; }
};

// Rounds up to a valid size of a slot's payload or of its reserved part.
constexpr std::uint64_t align_payload(std::uint64_t bytes) {
  return (bytes + payload_alignment - 1) & ~std::uint64_t{payload_alignment - 1};
}

// Cell size of task rings and result lanes: a message of 56 bytes and the sequence number fill one cache line.
constexpr std::uint32_t loader_cell_bytes = 64;

// Limits of a geometry. They keep every sum far from overflow.
constexpr std::uint32_t max_workers = 4096;
constexpr std::uint32_t max_slots = 1u << 20;
constexpr std::uint64_t max_slot_bytes = std::uint64_t{1} << 40;
constexpr std::uint64_t max_config_bytes = std::uint64_t{1} << 30;
constexpr std::uint32_t max_rows = 1u << 30;
constexpr std::uint32_t max_trace_records = (1u << 24) + 1;
constexpr std::uint32_t max_world = 0x7fffffff;
constexpr std::uint64_t max_segment_bytes = std::uint64_t{1} << 46;

// The shards of one rank, the shard of a worker of an iterable data set, and the shards of all ranks. A loader without
// workers has one shard.
constexpr std::uint64_t shards_of_rank(const Geometry& g) { return g.workers == 0 ? 1 : g.workers; }
constexpr std::uint64_t shard_of(const Geometry& g, std::uint32_t worker) {
  return g.rank * shards_of_rank(g) + worker;
}
constexpr std::uint64_t shards_of(const Geometry& g) { return g.world * shards_of_rank(g); }

// E_LIMIT names the field of the geometry that is out of range.
Status make_plan(const Geometry& geometry, Plan& out, Error& error);

}  // namespace feedlane::shm
