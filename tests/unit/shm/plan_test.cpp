// SPDX-License-Identifier: Apache-2.0
// Where everything lies in the segments, for every geometry.
#include "shm/plan.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <string>
#include <vector>

#include "shm/ring_layout.hpp"

using feedlane::Error;
using feedlane::Status;
namespace shm = feedlane::shm;
using shm::Geometry;
using shm::Plan;

namespace {

Geometry geometry() {
  Geometry g{};
  g.workers = 2;
  g.world = 1;
  g.slots = 5;
  g.max_rows = 3;
  g.field_count = 2;
  g.ring_capacity = 8;
  g.config_bytes = 10;
  g.slot_bytes = 5000;
  return g;
}

// Where a test doesn't say otherwise: all of a slot is memory, and a list holds a batch's indices.
Geometry complete(Geometry g) {
  if (g.reserved_bytes == 0) g.reserved_bytes = g.slot_bytes;
  if (g.list_bytes == 0) g.list_bytes = std::uint64_t{g.max_rows} * sizeof(std::int64_t);
  return g;
}

Plan plan_of(const Geometry& g) {
  Plan plan;
  Error error;
  const Status s = shm::make_plan(complete(g), plan, error);
  REQUIRE_MESSAGE(s == FEEDLANE_OK, error.text);
  return plan;
}

struct Region {
  const char* name;
  std::uint64_t offset, bytes, alignment;
};

std::vector<Region> control_regions(const Plan& p) {
  const Geometry& g = p.geometry;
  return {{"header", 0, sizeof(shm::SegmentHeader) + sizeof(Geometry), shm::writer_distance},
          {"trainer block", p.trainer_block, sizeof(shm::TrainerBlock), shm::writer_distance},
          {"counters", p.counters, sizeof(shm::LoaderCounters), shm::writer_distance},
          {"trainer rows", p.trainer_rows, g.workers * sizeof(shm::TrainerRow), shm::writer_distance},
          {"fields", p.fields, g.field_count * sizeof(shm::FieldRecord), shm::cell_line},
          {"config", p.config, g.config_bytes, shm::cell_line},
          {"task rings", p.task_rings, g.workers * p.ring_bytes, shm::payload_alignment},
          {"index lists", p.index_lists, g.slots * p.index_list_bytes, shm::payload_alignment},
          {"facts", p.facts, sizeof(shm::LoaderFacts), shm::writer_distance},
          {"timings", p.timings, p.timing_rows() * sizeof(shm::TimingRow), shm::writer_distance},
          {"errors", p.errors, shm::error_rows * sizeof(shm::ErrorRow), shm::writer_distance},
          {"slot records", p.slot_records, g.slots * sizeof(shm::BatchRecord), shm::writer_distance},
          {"trace head", p.trace_head, g.trace_records == 0 ? 0 : sizeof(shm::TraceHead), shm::writer_distance},
          {"trace", p.trace, g.trace_records * sizeof(shm::BatchRecord), shm::writer_distance}};
}

std::vector<Region> data_regions(const Plan& p) {
  const Geometry& g = p.geometry;
  return {{"margin", 0, shm::data_margin, shm::writer_distance},
          {"worker rows", p.worker_rows, g.workers * sizeof(shm::WorkerRow), shm::writer_distance},
          {"result lanes", p.result_lanes, g.workers * p.ring_bytes, shm::payload_alignment},
          {"slot headers", p.slot_headers, g.slots * sizeof(shm::SlotHeader), shm::payload_alignment},
          {"records", p.records, g.slots * p.record_bytes, shm::payload_alignment},
          {"payload", p.payload, g.slots * p.slot_stride, shm::payload_alignment}};
}

void check_segment(std::vector<Region> regions, std::uint64_t segment_bytes) {
  CHECK(segment_bytes % shm::payload_alignment == 0);
  std::stable_sort(regions.begin(), regions.end(),
                   [](const Region& a, const Region& b) { return a.offset < b.offset; });
  std::uint64_t end = 0;
  for (const Region& r : regions) {
    CAPTURE(std::string(r.name));
    CHECK(r.offset % r.alignment == 0);
    CHECK(r.offset >= end);
    end = r.offset + r.bytes;
    CHECK(end <= segment_bytes);
  }
  CHECK_MESSAGE(segment_bytes - end < shm::payload_alignment, "nothing behind the last region but the rest of a page");
}

void check_plan(const Plan& p) {
  check_segment(control_regions(p), p.control_bytes);
  check_segment(data_regions(p), p.data_bytes);
  CHECK(p.ring_bytes == std::uint64_t{p.geometry.ring_capacity} * shm::loader_cell_bytes);
  CHECK(p.index_list_bytes >= p.geometry.max_rows * sizeof(std::int64_t));
  CHECK(p.index_list_bytes % shm::cell_line == 0);
  CHECK(p.slot_stride >= p.geometry.slot_bytes);
  CHECK(p.slot_stride % shm::payload_alignment == 0);
  const std::uint32_t last = p.geometry.slots - 1;
  CHECK(p.payload_of(0) == p.payload);
  CHECK(p.payload_of(last) + p.geometry.slot_bytes <= p.data_bytes);
}

}  // namespace

TEST_CASE("a cell of a loader's rings is one cache line with a sequence number and a task or a result") {
  CHECK(shm::loader_cell_bytes == shm::cell_line);
  CHECK(sizeof(std::uint64_t) + sizeof(shm::TaskMessage) <= shm::loader_cell_bytes);
  CHECK(sizeof(std::uint64_t) + sizeof(shm::ResultMessage) <= shm::loader_cell_bytes);
}

TEST_CASE("regions are aligned, disjoint and inside their segment for any geometry") {
  for (const std::uint32_t workers : {0u, 1u, 2u, 3u, 64u, shm::max_workers})
    for (const std::uint32_t slots : {1u, 2u, 3u, 7u, 64u, 1000u})
      for (const std::uint32_t rows : {1u, 7u, 8u, 9u, 40960u})
        for (const std::uint64_t config : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{64}, std::uint64_t{4097}})
          for (const std::uint64_t bytes :
               {std::uint64_t{1}, std::uint64_t{4096}, std::uint64_t{4097}, std::uint64_t{1} << 24}) {
            Geometry g = geometry();
            g.workers = workers;
            g.slots = slots;
            g.max_rows = rows;
            g.ring_capacity = std::bit_ceil(slots);
            g.config_bytes = config;
            g.slot_bytes = bytes;
            g.field_count = rows % FEEDLANE_MAX_TENSORS + 1;
            g.trace_records = slots % 3 * 100;
            CAPTURE(workers);
            CAPTURE(slots);
            CAPTURE(rows);
            CAPTURE(config);
            CAPTURE(bytes);
            check_plan(plan_of(g));
          }
}

TEST_CASE("a larger geometry never has smaller segments") {
  struct Step {
    const char* name;
    void (*grow)(Geometry&);
  };
  for (const Step& step : {Step{"workers", [](Geometry& g) { g.workers++; }},
                           {"slots", [](Geometry& g) { g.slots++; }},
                           {"max_rows", [](Geometry& g) { g.max_rows += 500; }},
                           {"field_count", [](Geometry& g) { g.field_count += 4; }},
                           {"ring_capacity", [](Geometry& g) { g.ring_capacity *= 2; }},
                           {"config_bytes", [](Geometry& g) { g.config_bytes += 1000; }},
                           {"record_rows", [](Geometry& g) { g.max_rows += 20, g.record_rows += 20; }},
                           {"trace_records", [](Geometry& g) { g.trace_records += 40; }},
                           {"slot_bytes", [](Geometry& g) { g.slot_bytes += 1000; }}}) {
    CAPTURE(std::string(step.name));
    Geometry g = geometry();
    g.ring_capacity = 64;
    const Plan first = plan_of(g);
    Plan before = first;
    for (int i = 0; i < 14; i++) {
      step.grow(g);
      const Plan after = plan_of(g);
      CHECK(after.control_bytes >= before.control_bytes);
      CHECK(after.data_bytes >= before.data_bytes);
      before = after;
    }
    CHECK(before.control_bytes + before.data_bytes > first.control_bytes + first.data_bytes);
  }
}

TEST_CASE("a plan depends only on the geometry, and contains it") {
  const Plan a = plan_of(geometry());
  const Plan b = plan_of(geometry());
  CHECK(a.index_lists == b.index_lists);
  CHECK(a.payload == b.payload);
  CHECK(a.geometry.slot_bytes == 5000);
  Geometry seeded = geometry();
  seeded.base_seed = 99;
  CHECK_MESSAGE(plan_of(seeded).data_bytes == a.data_bytes, "a seed takes no room");
}

TEST_CASE("every number above its limit is refused with its name, the number and the limit") {
  struct Refusal {
    const char* argument;
    std::uint64_t found, needed;
    void (*set)(Geometry&);
  };
  for (const Refusal& r : {
           Refusal{"geometry.workers", 4097, 4096, [](Geometry& g) { g.workers = 4097; }},
           {"geometry.workers", UINT32_MAX, 4096, [](Geometry& g) { g.workers = UINT32_MAX; }},
           {"geometry.slots", 0, 1, [](Geometry& g) { g.slots = 0; }},
           {"geometry.slots", (1 << 20) + 1, 1 << 20, [](Geometry& g) { g.slots = (1 << 20) + 1; }},
           {"geometry.max_rows", 0, 1, [](Geometry& g) { g.max_rows = 0; }},
           {"geometry.max_rows", (1 << 30) + 1, 1 << 30, [](Geometry& g) { g.max_rows = (1 << 30) + 1; }},
           {"geometry.field_count", 65, 64, [](Geometry& g) { g.field_count = 65; }},
           {"geometry.ring_capacity", 0, 1, [](Geometry& g) { g.ring_capacity = 0; }},
           {"geometry.ring_capacity", 1 << 21, 1 << 20, [](Geometry& g) { g.ring_capacity = 1 << 21; }},
           {"geometry.ring_capacity", 6, 5, [](Geometry& g) { g.ring_capacity = 6; }},
           {"geometry.ring_capacity", 4, 5, [](Geometry& g) { g.ring_capacity = 4; }},
           {"geometry.config_bytes", (1 << 30) + 1, 1 << 30, [](Geometry& g) { g.config_bytes = (1 << 30) + 1; }},
           {"geometry.slot_bytes", 0, 1, [](Geometry& g) { g.slot_bytes = 0; }},
           {"geometry.reserved_bytes", 5001, 5000, [](Geometry& g) { g.reserved_bytes = 5001; }},
           {"geometry.list_bytes", 1, 8, [](Geometry& g) { g.max_rows = 1, g.list_bytes = 1; }},
           {"geometry.record_rows", 2, 1, [](Geometry& g) { g.max_rows = 1, g.record_rows = 2; }},
           {"geometry.trace_records", (1 << 24) + 2, (1 << 24) + 1,
            [](Geometry& g) { g.trace_records = (1 << 24) + 2; }},
           {"geometry.world", 0, 1, [](Geometry& g) { g.world = 0; }},
           {"geometry.world", UINT32_MAX, INT32_MAX, [](Geometry& g) { g.world = UINT32_MAX; }},
           {"geometry.rank", 3, 2, [](Geometry& g) { g.world = 3, g.rank = 3; }},
           {"geometry.slot_bytes", shm::max_slot_bytes + 1, shm::max_slot_bytes,
            [](Geometry& g) { g.slot_bytes = shm::max_slot_bytes + 1; }},
       }) {
    Geometry g = geometry();
    r.set(g);
    Plan plan;
    Error error;
    CAPTURE(std::string(r.argument));
    CAPTURE(r.found);
    CHECK(shm::make_plan(complete(g), plan, error) == FEEDLANE_E_LIMIT);
    CHECK(std::string(error.argument) == r.argument);
    CHECK(error.found == static_cast<std::int64_t>(r.found));
    CHECK(error.needed == static_cast<std::int64_t>(r.needed));
    CHECK_MESSAGE(plan.data_bytes == 0, "the plan is untouched");
  }
}

TEST_CASE("each number may be as large as its limit, but together they must fit into the largest segment") {
  Geometry g = geometry();
  g.workers = shm::max_workers;
  g.slots = 16;
  g.ring_capacity = 16;
  g.field_count = FEEDLANE_MAX_TENSORS;
  g.max_rows = shm::max_rows;
  g.config_bytes = shm::max_config_bytes;
  g.trace_records = shm::max_trace_records;
  g.slot_bytes = shm::max_slot_bytes;
  check_plan(plan_of(g));

  Plan plan;
  Error error;
  for (const bool rows : {true, false}) {
    Geometry huge = geometry();
    huge.slots = huge.ring_capacity = shm::max_slots;
    (rows ? huge.max_rows : huge.workers) = rows ? shm::max_rows : shm::max_workers;
    if (!rows) huge.slot_bytes = shm::max_slot_bytes;
    CHECK(shm::make_plan(complete(huge), plan, error) == FEEDLANE_E_LIMIT);
    CHECK(std::string(error.argument) == "arena");
    CHECK(error.needed == static_cast<std::int64_t>(shm::max_segment_bytes));
    CHECK(error.found > error.needed);
  }
}

TEST_CASE("a random geometry either gives a consistent plan or is refused") {
  std::mt19937_64 random(1);
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  int made = 0;
  for (int i = 0; i < 2000; i++) {
    Geometry g{};
    g.workers = static_cast<std::uint32_t>(below(300));
    g.world = 1;
    g.slots = 1 + static_cast<std::uint32_t>(below(std::uint64_t{1} << below(21)));
    g.max_rows = 1 + static_cast<std::uint32_t>(below(std::uint64_t{1} << below(31)));
    g.field_count = 1 + static_cast<std::uint32_t>(below(64));
    g.ring_capacity = std::bit_ceil(g.slots);
    g.config_bytes = below(std::uint64_t{1} << below(31));
    g.slot_bytes = 1 + below(std::uint64_t{1} << below(41));
    g.trace_records = static_cast<std::uint32_t>(below(std::uint64_t{1} << below(25)));
    Plan plan;
    Error error;
    if (shm::make_plan(complete(g), plan, error) != FEEDLANE_OK) {
      CHECK(error.code == FEEDLANE_E_LIMIT);
      continue;
    }
    made++;
    check_plan(plan);
  }
  CHECK(made > 500);
}

TEST_CASE("a cell of a standalone ring has as many cache lines as a message and its sequence number take") {
  for (const std::uint32_t message_bytes : {1u, 56u, 57u, 120u, 121u}) {
    CAPTURE(message_bytes);
    shm::RingPlan p;
    Error error;
    REQUIRE(shm::make_ring_plan(message_bytes, 8, 2, p, error) == FEEDLANE_OK);
    CHECK(p.geometry.cell_bytes == (message_bytes <= 56 ? 64 : message_bytes <= 120 ? 128 : 192));
    CHECK(p.data_bytes % shm::payload_alignment == 0);
    CHECK(p.data_bytes - p.cells - 8 * p.geometry.cell_bytes < shm::payload_alignment);
    CHECK(p.control_bytes - p.receiver_rows - 2 * sizeof(shm::ReceiverRow) < shm::payload_alignment);
  }
}
