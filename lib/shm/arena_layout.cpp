// SPDX-License-Identifier: Apache-2.0
// Computes the offsets of an arena's regions.
#include "shm/arena_layout.hpp"

#include <bit>

namespace feedlane::shm {

Status make_arena_plan(const ArenaGeometry& g, ArenaPlan& out, Error& error) {
  struct Range {
    const char* argument;
    std::uint64_t value, low, high;
  };
  for (const Range& r : {Range{"config.bytes", g.bytes, 64 * 1024, max_arena_bytes},
                         {"config.entries", g.entries, 1, max_arena_entries},
                         {"config.members", g.members, 1, max_arena_members},
                         {"config.leases", g.leases, 1, max_arena_leases},
                         {"arena.segments", g.segments, g.members, 8 * max_arena_members},
                         {"arena.buckets", g.buckets, 1, 2 * max_arena_entries}})
    if (r.value < r.low || r.value > r.high)
      return error.refuse(FEEDLANE_E_ARGUMENT, r.argument, r.value, r.value < r.low ? r.low : r.high,
                          "{} is {}: must be {} to {}", r.argument, r.value, r.low, r.high);
  if (!std::has_single_bit(g.buckets))
    return error.refuse(FEEDLANE_E_ARGUMENT, "arena.buckets", g.buckets, std::bit_ceil(g.buckets),
                        "arena.buckets is {}: must be a power of two", g.buckets);
  const auto align = [](std::uint64_t value, std::uint64_t alignment) {
    return (value + alignment - 1) & ~(alignment - 1);
  };
  ArenaPlan p;
  p.geometry = g;
  p.geometry.layout = static_cast<std::uint32_t>(arena_layout_hash);
  // The limits above keep every sum below 2^43.
  p.block = align(sizeof(SegmentHeader) + sizeof(ArenaGeometry), writer_distance);
  p.members = p.block + sizeof(ArenaBlock);
  p.buckets = p.members + std::uint64_t{g.members} * sizeof(ArenaMemberFacts);
  p.entries = align(p.buckets + std::uint64_t{g.buckets} * sizeof(Word64), alignof(ArenaEntry));
  p.control_bytes = align(p.entries + std::uint64_t{g.entries} * sizeof(ArenaEntry), payload_alignment);
  p.answers = align(sizeof(SegmentHeader) + sizeof(ArenaGeometry), writer_distance);
  p.answer_cells = p.answers + sizeof(ArenaAnswers);
  p.delivery_cells = p.answer_cells + std::uint64_t{arena_ring_capacity} * arena_answer_cell;
  p.answers_bytes =
      align(p.delivery_cells + std::uint64_t{arena_ring_capacity} * arena_delivery_cell, payload_alignment);
  p.row = align(sizeof(SegmentHeader), writer_distance);
  p.leases = p.row + sizeof(ArenaMemberRow);
  p.uses = align(p.leases + std::uint64_t{g.leases} * sizeof(Word64), writer_distance);
  p.request_cells = align(p.uses + std::uint64_t{g.entries} * sizeof(Word64), writer_distance);
  p.member_bytes = align(p.request_cells + std::uint64_t{arena_ring_capacity} * arena_request_cell, payload_alignment);
  // Twice the memory, so that there are free addresses although the memory in use is scattered.
  p.payload_bytes = align(2 * g.bytes, std::uint64_t{2} << 20);
  out = p;
  return FEEDLANE_OK;
}

}  // namespace feedlane::shm
