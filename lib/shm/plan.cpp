// SPDX-License-Identifier: Apache-2.0
// Computes the offsets of a loader's regions from its geometry.
#include "shm/plan.hpp"

#include <algorithm>
#include <bit>

namespace feedlane::shm {
namespace {

// Places regions one after another. The limits in plan.hpp keep every sum below 2^62.
class Placer {
 public:
  explicit Placer(std::uint64_t start) : end_(start) {}
  std::uint64_t place(std::uint64_t bytes, std::uint64_t alignment) {
    const std::uint64_t at = align(end_, alignment);
    end_ = at + bytes;
    return at;
  }
  static constexpr std::uint64_t align(std::uint64_t value, std::uint64_t alignment) {
    return (value + alignment - 1) & ~(alignment - 1);
  }
  [[nodiscard]] std::uint64_t segment_bytes() const { return align(end_, payload_alignment); }

 private:
  std::uint64_t end_;
};

Status check(const Geometry& g, Error& error) {
  struct Range {
    const char* name;
    std::uint64_t value, low, high;
  };
  for (const Range& r : {Range{"geometry.workers", g.workers, 0, max_workers},
                         {"geometry.slots", g.slots, 1, max_slots},
                         {"geometry.max_rows", g.max_rows, 1, max_rows},
                         {"geometry.field_count", g.field_count, 0, FEEDLANE_MAX_TENSORS},
                         {"geometry.ring_capacity", g.ring_capacity, 1, max_slots},
                         {"geometry.config_bytes", g.config_bytes, 0, max_config_bytes},
                         {"geometry.slot_bytes", g.slot_bytes, 1, max_slot_bytes},
                         {"geometry.reserved_bytes", g.reserved_bytes, 1, g.slot_bytes},
                         {"geometry.list_bytes", g.list_bytes, std::uint64_t{g.max_rows} * sizeof(std::int64_t),
                          std::uint64_t{max_rows} * sizeof(std::int64_t)},
                         {"geometry.record_rows", g.record_rows, 0, g.max_rows},
                         {"geometry.trace_records", g.trace_records, 0, max_trace_records},
                         {"geometry.world", g.world, 1, max_world},
                         {"geometry.rank", g.rank, 0, std::max(g.world, 1U) - 1}})
    if (r.value < r.low || r.value > r.high)
      return error.refuse(FEEDLANE_E_LIMIT, r.name, r.value, r.value < r.low ? r.low : r.high,
                          "{} is {}: must be {} to {}", r.name, r.value, r.low, r.high);
  if (!std::has_single_bit(g.ring_capacity) || g.ring_capacity < g.slots)
    return error.refuse(FEEDLANE_E_LIMIT, "geometry.ring_capacity", g.ring_capacity, g.slots,
                        "geometry.ring_capacity is {}: must be a power of two and at least geometry.slots, {}",
                        g.ring_capacity, g.slots);
  return FEEDLANE_OK;
}

}  // namespace

Status make_plan(const Geometry& g, Plan& out, Error& error) {
  if (const Status s = check(g, error); s != FEEDLANE_OK) return s;
  Plan p;
  p.geometry = g;
  p.ring_bytes = std::uint64_t{g.ring_capacity} * loader_cell_bytes;
  p.index_list_bytes = Placer::align(g.list_bytes, cell_line);
  p.record_bytes = g.record_rows * sizeof(SampleRecord);

  Placer control(sizeof(SegmentHeader) + sizeof(Geometry));
  p.trainer_block = control.place(sizeof(TrainerBlock), writer_distance);
  p.counters = control.place(sizeof(LoaderCounters), writer_distance);
  p.trainer_rows = control.place(g.workers * sizeof(TrainerRow), writer_distance);
  p.fields = control.place(g.field_count * sizeof(FieldRecord), cell_line);
  p.config = control.place(g.config_bytes, cell_line);
  p.task_rings = control.place(g.workers * p.ring_bytes, payload_alignment);
  p.index_lists = control.place(g.slots * p.index_list_bytes, payload_alignment);
  p.facts = control.place(sizeof(LoaderFacts), writer_distance);
  p.timings = control.place(p.timing_rows() * sizeof(TimingRow), writer_distance);
  p.errors = control.place(error_rows * sizeof(ErrorRow), writer_distance);
  p.slot_records = control.place(g.slots * sizeof(BatchRecord), writer_distance);
  p.trace_head = control.place(g.trace_records == 0 ? 0 : sizeof(TraceHead), writer_distance);
  p.trace = control.place(g.trace_records * sizeof(BatchRecord), writer_distance);
  p.control_bytes = control.segment_bytes();

  p.slot_stride = align_payload(g.slot_bytes);
  p.slot_reserved = align_payload(g.reserved_bytes);
  Placer data(data_margin);
  p.worker_rows = data.place(g.workers * sizeof(WorkerRow), writer_distance);
  p.result_lanes = data.place(g.workers * p.ring_bytes, payload_alignment);
  p.slot_headers = data.place(g.slots * sizeof(SlotHeader), payload_alignment);
  p.records = data.place(g.slots * p.record_bytes, payload_alignment);
  p.payload = data.place(g.slots * p.slot_stride, payload_alignment);
  p.data_bytes = data.segment_bytes();

  if (const std::uint64_t largest = std::max(p.control_bytes, p.data_bytes); largest > max_segment_bytes)
    return error.refuse(FEEDLANE_E_LIMIT, "arena", largest, max_segment_bytes,
                        "{} slots of {} bytes take {} bytes, but the largest segment has {}", g.slots, g.slot_bytes,
                        largest, max_segment_bytes);
  out = p;
  return FEEDLANE_OK;
}

}  // namespace feedlane::shm
