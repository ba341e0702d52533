// SPDX-License-Identifier: Apache-2.0
// Records are read whole or not at all, whatever the writer does meanwhile; errors are counted by their kind.
#include "monitor/records.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "monitor/errors.hpp"
#include "monitor/histogram.hpp"

using namespace feedlane;
using namespace feedlane::monitor;

namespace {

constexpr std::uint32_t trace_records = 5;

std::unique_ptr<shm::Segments> make_segments() {
  shm::Geometry g{};
  g.workers = 1;
  g.world = 1;
  g.slots = 2;
  g.max_rows = g.ring_capacity = 2;
  g.slot_bytes = g.reserved_bytes = 64;
  g.list_bytes = 16;
  g.trace_records = trace_records;
  auto segments = std::make_unique<shm::Segments>();
  shm::Plan plan;
  Error error;
  REQUIRE(shm::make_plan(g, plan, error) == FEEDLANE_OK);
  REQUIRE(segments->create(plan, os::SystemFiles{}, error) == FEEDLANE_OK);
  return segments;
}

// Every word of it says the same number.
void fill(shm::BatchRecord& r, std::uint64_t n) {
  for (shm::Word64* word : {&r.task, &r.epoch, &r.batch, &r.rows, &r.bytes, &r.dispatched_ns, &r.begun_ns,
                            &r.committed_ns, &r.swept_ns, &r.yielded_ns, &r.exposed_ns})
    word->store(n, std::memory_order_relaxed);
}

bool is_whole(const feedlane_batch_record& r) {
  return r.task == r.sequence && r.rows == r.task && r.bytes == r.task && r.dispatched_ns == r.task &&
         r.begun_ns == r.task && r.committed_ns == r.task && r.swept_ns == r.task && r.yielded_ns == r.task &&
         r.exposed_ns == r.task && r.released_ns == r.task;
}

std::vector<feedlane_batch_record> room(std::size_t count) {
  feedlane_batch_record record{};
  record.size = sizeof record;
  return std::vector<feedlane_batch_record>(count, record);
}

}  // namespace

// promise: monitor-time-stamps
TEST_CASE("records read from a trace during writes are whole and in order") {
  const auto segments = make_segments();
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    TraceWriter trace;
    trace.use(*segments);
    shm::BatchRecord record{};
    for (std::uint64_t n = 1; !is_over.load(); n++) {
      fill(record, n);
      trace.append(record, n);
    }
  });
  std::uint64_t read = 0, torn = 0, disordered = 0, next = 1;
  auto records = room(trace_records);
  while (read < 3'000) {
    std::uint64_t count = 0;
    (void)read_trace(*segments, next, records.data(), records.size(), count);
    for (std::uint64_t i = 0; i < count; i++) {
      torn += is_whole(records[i]) ? 0 : 1;
      disordered += records[i].sequence < next ? 1 : 0;
      next = records[i].sequence + 1;
    }
    read += count;
  }
  is_over.store(true);
  writer.join();
  CHECK(torn == 0);
  CHECK(disordered == 0);
}

TEST_CASE("a reader with longer record structs gets each record, and its additional members stay unchanged") {
  struct Longer {
    feedlane_batch_record record{};
    std::uint64_t more = 42;
  } longer[2];
  const auto segments = make_segments();
  TraceWriter trace;
  trace.use(*segments);
  shm::BatchRecord record{};
  for (const std::uint64_t n : {std::uint64_t{1}, std::uint64_t{2}}) {
    fill(record, n);
    trace.append(record, n);
  }
  longer[0].record.size = sizeof(Longer);
  std::uint64_t count = 0;
  REQUIRE(read_trace(*segments, 0, &longer[0].record, 2, count) == FEEDLANE_OK);
  CHECK(count == 2);
  CHECK(longer[1].record.task == 2);
  CHECK(longer[1].record.size == sizeof(Longer));
  CHECK(longer[1].more == 42);
}

// promise: monitor-errors-counted
TEST_CASE("32 distinct errors are kept, and a new error replaces the error with the oldest last occurrence") {
  const auto segments = make_segments();
  ErrorTable table;
  Error ignored;
  (void)ignored.fail(FEEDLANE_E_SAMPLE, "before there are segments");
  table.note(0, ignored);
  table.use(*segments);
  const auto note = [&](char letter, int number) {
    Error e;
    (void)e.fail(FEEDLANE_E_SAMPLE, "file {}{} is damaged", std::string(1, letter), number);
    e.sample = number;
    table.note(0, e);
  };
  const auto get = [&](std::int32_t index) {
    feedlane_error_record r{};
    return read_error(*segments, index, r) == FEEDLANE_OK ? r : feedlane_error_record{};
  };
  for (int i = 0; i < 32; i++) note(static_cast<char>('A' + i), i);
  note('A', 123456);  // the same as the first, so the second is the oldest now
  CHECK(get(0).count == 2);
  CHECK(std::string(get(0).text) == "file A123456 is damaged");
  CHECK(get(0).sample == 123456);
  CHECK(get(0).first_ns < get(0).last_ns);
  note('z', 7);
  CHECK(get(31).sample == 7);
  CHECK(std::string(get(1).text) == "file C2 is damaged");
  feedlane_error_record r{};
  CHECK(read_error(*segments, 32, r) == FEEDLANE_END);
}

TEST_CASE("a duration is counted in the bucket of its power of two") {
  shm::Histogram histogram{};
  for (const std::uint64_t ns : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{3},
                                 std::uint64_t{1023}, std::uint64_t{1024}, UINT64_MAX / 2})
    observe(histogram, ns);
  Durations all;
  add_to(all, histogram);
  const feedlane_histogram h = by_powers(all);
  CHECK(h.count == 7);
  CHECK(h.buckets[0] == 1);
  CHECK(h.buckets[1] == 1);
  CHECK(h.buckets[2] == 2);
  CHECK(h.buckets[10] == 1);
  CHECK(h.buckets[11] == 1);
  CHECK(h.buckets[FEEDLANE_HISTOGRAM_BUCKETS - 1] == 1);
  CHECK(h.sum_ns == 6 + 1023 + 1024 + UINT64_MAX / 2);
}

TEST_CASE("a histogram bucket is 1/8 of a power of two wide, and a percentile is wrong by at most 1/8") {
  CHECK(bucket_of(0) == 0);
  CHECK(bucket_of(7) == 7);
  CHECK(bucket_of(8) == 8);
  CHECK(bucket_of(UINT64_MAX) == shm::histogram_buckets - 1);
  for (std::size_t b = 0; b + 1 < shm::histogram_buckets; b++) {
    CAPTURE(b);
    CHECK(bucket_of(bucket_start(b)) == b);
    CHECK(bucket_of(bucket_start(b + 1) - 1) == b);
  }
  for (const std::uint64_t ns :
       {std::uint64_t{0}, std::uint64_t{5}, std::uint64_t{36'000'000}, std::uint64_t{320'000'000}}) {
    CAPTURE(ns);
    shm::Histogram histogram{};
    for (int i = 0; i < 1000; i++) observe(histogram, ns);
    Durations all;
    add_to(all, histogram);
    const feedlane_percentiles p = percentiles(all);
    for (const std::uint64_t at : {p.p50_ns, p.p90_ns, p.p99_ns}) {
      CHECK(at <= ns + ns / 8);
      CHECK(at >= ns - ns / 8);
    }
  }
}

TEST_CASE("a trace that claims to have 2^64 - 1 records is read as empty") {
  const auto segments = make_segments();
  segments->trace_head()->written.store(UINT64_MAX, std::memory_order_relaxed);
  auto records = room(8);
  std::uint64_t count = 1;
  CHECK(read_trace(*segments, 0, records.data(), records.size(), count) == FEEDLANE_END);
  CHECK(count == 0);
}
