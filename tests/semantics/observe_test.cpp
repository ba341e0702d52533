// SPDX-License-Identifier: Apache-2.0
// Stamps, histograms, the trace, distinct errors, and what is said to bound a run.
#include "feedlane/observe.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "observe.hpp"
#include "support/events.hpp"
#include "support/process.hpp"
#include "support/sanitizers.hpp"
#include "support/scripted.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

std::vector<feedlane_batch_record> trace_of(const feedlane_loader* l, std::uint64_t from = 0) {
  std::vector<feedlane_batch_record> records(1000, fresh<feedlane_batch_record>());
  std::uint64_t count = 0;
  const std::int32_t status = observe(l, feedlane_monitor_get_trace, from, records.data(), records.size(), &count);
  REQUIRE((status == FEEDLANE_OK || status == FEEDLANE_END));
  CHECK((count == 0) == (status == FEEDLANE_END));
  records.resize(count);
  return records;
}

feedlane_timings timings_of(const feedlane_loader* l, std::int32_t worker = -1) {
  auto t = fresh<feedlane_timings>();
  REQUIRE(observe(l, feedlane_monitor_get_timings, worker, &t) == FEEDLANE_OK);
  return t;
}

std::vector<feedlane_error_record> errors_of(const feedlane_loader* l) {
  std::vector<feedlane_error_record> all;
  auto e = fresh<feedlane_error_record>();
  for (std::int32_t i = 0; observe(l, feedlane_monitor_get_error, i, &e) == FEEDLANE_OK; i++) all.push_back(e);
  return all;
}

void check_increasing(const feedlane_batch_record& r) {
  CHECK(r.dispatched_ns != 0);
  CHECK(r.dispatched_ns <= r.begun_ns);
  CHECK(r.begun_ns <= r.committed_ns);
  CHECK(r.committed_ns <= r.swept_ns);
  CHECK(r.swept_ns <= r.yielded_ns);
  CHECK(r.yielded_ns <= r.released_ns);
}

struct Counted {
  feedlane_histogram h{};
  void add(std::uint64_t ns) {
    h.count++;
    h.sum_ns += ns;
    h.buckets[std::min<std::size_t>(std::bit_width(ns), FEEDLANE_HISTOGRAM_BUCKETS - 1)]++;
  }
};

void check_same(const feedlane_histogram& a, const feedlane_histogram& b) {
  CHECK(a.count == b.count);
  CHECK(a.sum_ns == b.sum_ns);
  for (std::size_t i = 0; i < FEEDLANE_HISTOGRAM_BUCKETS; i++) CHECK(a.buckets[i] == b.buckets[i]);
}

}  // namespace

// promise: monitor-time-stamps
TEST_CASE("the time stamps of a batch never decrease, and the trace has every batch once with the same stamps") {
  for (const std::int32_t workers : {0, 1, 2}) {
    CAPTURE(workers);
    Setup s(60, 3);
    if (workers != 0) s.workers(workers);
    s.config.trace = 100;
    const Loader l = s.create();
    begin(l.get(), 0);
    std::vector<feedlane_batch> seen;
    const std::uint64_t before = now_ns();
    for (auto b = fresh<feedlane_batch>(); feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK;) {
      seen.push_back(b);
      REQUIRE(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
    }
    const std::uint64_t after = now_ns();
    const std::vector<feedlane_batch_record> records = trace_of(l.get());
    REQUIRE(seen.size() == 20);
    REQUIRE(records.size() == 20);
    for (const feedlane_batch_record& r : records) {
      check_increasing(r);
      CHECK(r.sequence == static_cast<std::uint64_t>(&r - records.data()) + 1);
      CHECK(before <= r.begun_ns);
      CHECK(r.released_ns <= after);
      const auto b =
          std::find_if(seen.begin(), seen.end(), [&](const feedlane_batch& x) { return x.batch == r.batch; });
      REQUIRE(b != seen.end());
      CHECK(r.dispatched_ns == b->dispatched_ns);
      CHECK(r.begun_ns == b->begun_ns);
      CHECK(r.committed_ns == b->committed_ns);
      CHECK(r.swept_ns == b->swept_ns);
      CHECK(r.yielded_ns == b->yielded_ns);
      CHECK(r.exposed_ns == b->exposed_ns);
      CHECK(r.worker == b->worker);
      CHECK(r.rows == b->count);
      CHECK(r.bytes == b->tensors[0].bytes + b->tensors[1].bytes);
      seen.erase(b);
    }
  }
}

// promise: monitor-time-stamps
TEST_CASE("the histograms equal the sums over the trace, for each worker and for all workers") {
  Setup s(400, 2);
  Slow slow;
  slow.sample_ns = 20'000;
  s.forked(2, slow_dataset(slow));
  s.config.trace = 1000;
  const Loader l = s.create();
  for (const std::int64_t epoch : {0, 1}) (void)take_epoch(l.get(), epoch);
  const std::vector<feedlane_batch_record> records = trace_of(l.get());
  REQUIRE(records.size() == 400);
  for (const std::int32_t worker : {-1, 0, 1}) {
    CAPTURE(worker);
    Counted exposed, start, queue, work, ready, hold;
    for (const feedlane_batch_record& r : records) {
      if (worker >= 0 && r.worker != worker) continue;
      (r.batch == 0 ? start : exposed).add(r.exposed_ns);
      queue.add(r.begun_ns - r.dispatched_ns);
      work.add(r.committed_ns - r.begun_ns);
      ready.add(r.yielded_ns - r.committed_ns);
      hold.add(r.released_ns - r.yielded_ns);
    }
    const feedlane_timings t = timings_of(l.get(), worker);
    check_same(t.exposed, exposed.h);
    check_same(t.start, start.h);
    check_same(t.queue, queue.h);
    check_same(t.work, work.h);
    check_same(t.ready, ready.h);
    check_same(t.hold, hold.h);
  }
  auto t = fresh<feedlane_timings>();
  CHECK(observe(l.get(), feedlane_monitor_get_timings, 2, &t) == FEEDLANE_END);
  CHECK(observe(l.get(), feedlane_monitor_get_timings, -2, &t) == FEEDLANE_E_ARGUMENT);
}

// promise: monitor-wait-counted
TEST_CASE("the exposed wait agrees with a clock outside the loader within 1 %") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Setup s(60, 1);
    Slow slow;
    slow.sample_ns = 5'000'000;
    s.forked(workers, slow_dataset(slow));
    s.config.trace = 100;
    const Loader l = s.create();
    begin(l.get(), 0);
    std::uint64_t traced = 0;
    std::vector<double> shares;  // of each wait, as the clock outside sees it
    auto b = fresh<feedlane_batch>();
    for (int i = 0; i < 60; i++) {
      const std::uint64_t before = now_ns();
      REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
      const std::uint64_t outside = now_ns() - before;
      CHECK(b.exposed_ns <= outside);
      shares.push_back(static_cast<double>(b.exposed_ns) / static_cast<double>(outside));
      traced += b.exposed_ns;
      REQUIRE(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
    }
    std::nth_element(shares.begin(), shares.begin() + 30, shares.end());
    // Poisoning takes time of its own, between the stamp and the return.
    constexpr double least = FEEDLANE_TEST_SANITIZED != 0 ? 0.9 : 0.99;
    CHECK_MESSAGE(shares[30] >= least, "the median: other processes may run between the two clocks");
    CHECK_MESSAGE(stats_of(l.get()).wait_ns == traced, "all of it was for batches");
    CHECK(stats_of(l.get()).start_wait_ns == timings_of(l.get()).start.sum_ns);
  }
}

// promise: monitor-wait-counted
TEST_CASE("the time that a host sleeps on the loader's descriptor counts as exposed wait") {
  Setup s(40, 1);
  Slow slow;
  slow.sample_ns = 5'000'000;
  s.forked(1, slow_dataset(slow));
  const Loader l = s.create();
  std::int32_t fd = -1;
  REQUIRE(wait_fd_of(l.get(), &fd) == FEEDLANE_OK);
  begin(l.get(), 0);
  std::vector<double> shares;
  std::uint64_t since = now_ns();
  auto b = fresh<feedlane_batch>();
  for (std::int32_t status = FEEDLANE_TIMEOUT; status != FEEDLANE_END;) {
    status = feedlane_loader_next(l.get(), 0, &b, nullptr);
    if (status == FEEDLANE_OK) {
      const std::uint64_t outside = now_ns() - since;
      CHECK(b.exposed_ns <= outside);
      shares.push_back(static_cast<double>(b.exposed_ns) / static_cast<double>(outside));
      REQUIRE(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
      since = now_ns();
    } else if (status == FEEDLANE_TIMEOUT && feedlane_loader_arm(l.get(), nullptr) == FEEDLANE_OK) {
      REQUIRE(wait_readable(fd));
    }
  }
  REQUIRE(shares.size() == 40);
  std::nth_element(shares.begin(), shares.begin() + 20, shares.end());
  CHECK_MESSAGE(shares[20] >= 0.9, "the median: other processes may run between the two clocks");
  const feedlane_diagnosis d = diagnosis_of(l.get());
  CHECK_MESSAGE(d.bound == FEEDLANE_BOUND_DATA, d.text);
}

// promise: monitor-wait-counted
TEST_CASE("a wait in progress is counted before it ends") {
  Setup s(4, 1);
  Slow slow;
  slow.sample_ns = 300'000'000;
  s.forked(1, slow_dataset(slow));
  const Loader l = s.create();
  begin(l.get(), 0);
  std::thread trainer([&] {
    auto b = fresh<feedlane_batch>();
    CHECK(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
    CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  });
  const auto info = [&] {
    auto i = fresh<feedlane_loader_info>();
    REQUIRE(observe(l.get(), feedlane_monitor_get_info, &i) == FEEDLANE_OK);
    return i;
  };
  CHECK(eventually([&] { return info().waiting_since_ns != 0 && stats_of(l.get()).wait_ns > 10'000'000; }));
  trainer.join();
  CHECK(info().waiting_since_ns == 0);
  const std::uint64_t waited = stats_of(l.get()).wait_ns;
  CHECK_MESSAGE(waited >= 200'000'000, "the worker begins before next is called");
  CHECK_MESSAGE(stats_of(l.get()).wait_ns == waited, "nothing waits");
}

// promise: monitor-time-stamps
TEST_CASE("a failed batch is in the trace, with its error, once next has reported it") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Setup s(6, 1);
    if (workers != 0) s.workers(workers);
    s.plan.fail_index = 3;
    s.config.trace = 8;
    const Loader l = s.create();
    begin(l.get(), 0);
    while (take(l.get()).status == FEEDLANE_OK) continue;
    const std::vector<feedlane_batch_record> records = trace_of(l.get());
    const auto failed = std::find_if(records.begin(), records.end(), [](const auto& r) { return r.batch == 3; });
    REQUIRE(failed != records.end());
    CHECK(failed->status == FEEDLANE_E_SAMPLE);
    CHECK(failed->released_ns == failed->yielded_ns);
  }
}

// promise: monitor-time-stamps
TEST_CASE("the trace keeps the newest batches, and reading a trace fails with E_STATE if tracing is off") {
  Setup s(50, 1);
  s.config.trace = 8;
  const Loader l = s.create();
  (void)take_epoch(l.get(), 0);
  const std::vector<feedlane_batch_record> records = trace_of(l.get());
  REQUIRE(records.size() == 8);
  CHECK(records.front().sequence == 43);
  CHECK(records.back().sequence == 50);
  // With room for as many as the trace keeps, or for one.
  std::vector<feedlane_batch_record> room(8, fresh<feedlane_batch_record>());
  std::uint64_t copied = 0;
  REQUIRE(observe(l.get(), feedlane_monitor_get_trace, 0, room.data(), 8, &copied) == FEEDLANE_OK);
  CHECK(copied == 8);
  CHECK(room[7].sequence == 50);
  REQUIRE(observe(l.get(), feedlane_monitor_get_trace, 0, room.data(), 1, &copied) == FEEDLANE_OK);
  CHECK(room[0].sequence == 43);
  CHECK(trace_of(l.get(), 49).size() == 2);
  CHECK(trace_of(l.get(), 51).empty());
  Setup off(2, 1);
  const Loader without = off.create();
  std::uint64_t count = 1;
  CHECK(observe(without.get(), feedlane_monitor_get_trace, 0, nullptr, 0, &count) == FEEDLANE_E_STATE);
  CHECK(count == 0);
}

// promise: monitor-time-stamps
TEST_CASE("FEEDLANE_TRACE enables a trace that is not configured, and a value that is not a valid number is refused") {
  REQUIRE(::setenv("FEEDLANE_TRACE", "16", 1) == 0);
  {
    Setup s(4, 1);
    const Loader l = s.create();
    (void)take_epoch(l.get(), 0);
    CHECK(trace_of(l.get()).size() == 4);
  }
  for (const char* bad : {"many", "-1", "16x", "16777217"}) {
    CAPTURE(bad);
    REQUIRE(::setenv("FEEDLANE_TRACE", bad, 1) == 0);
    Setup s(4, 1);
    Loader l;
    Error e;
    CHECK(s.try_create(l, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == "FEEDLANE_TRACE");
  }
  REQUIRE(::unsetenv("FEEDLANE_TRACE") == 0);
}

// promise: monitor-name-and-position
TEST_CASE("a monitor shows a loader's name and position in its epoch, and a name that is too long is refused") {
  Setup s(10, 2);
  s.workers(2);
  const std::string name(63, 'n');
  s.config.name = name.c_str();
  const Loader l = s.create();
  auto i = fresh<feedlane_loader_info>();
  REQUIRE(observe(l.get(), feedlane_monitor_get_info, &i) == FEEDLANE_OK);
  CHECK(i.name == name);
  CHECK(i.epoch == -1);
  CHECK(i.in_epoch == 0);
  CHECK(i.pid == ::getpid());
  CHECK(i.workers == 2);
  CHECK(i.batch_size == 2);
  CHECK(std::string(i.version) == feedlane_version());
  begin(l.get(), 7);
  CHECK(take(l.get()).batch == 0);
  CHECK(take(l.get()).batch == 1);
  REQUIRE(observe(l.get(), feedlane_monitor_get_info, &i) == FEEDLANE_OK);
  CHECK(i.epoch == 7);
  CHECK(i.in_epoch == 1);
  CHECK(i.batch == 2);
  CHECK(i.batches == 5);
  (void)take_rest(l.get());
  REQUIRE(observe(l.get(), feedlane_monitor_get_info, &i) == FEEDLANE_OK);
  CHECK(i.in_epoch == 0);
  CHECK(i.batch == 5);
  const std::string longer = name + "x";
  s.config.name = longer.c_str();
  Loader refused;
  Error e;
  CHECK(s.try_create(refused, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(e.argument) == "config.name");
  CHECK(e.found == 64);
  CHECK(e.needed == 63);
}

// promise: monitor-name-and-position
TEST_CASE("the record of a slot shows the batch that the trainer holds until that batch is released") {
  Setup s(8, 1);
  s.workers(1);
  const Loader l = s.create();
  begin(l.get(), 0);
  auto b = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
  const auto held = [&] {
    std::vector<feedlane_batch_record> found;
    const std::uint64_t there = stats_of(l.get()).slots;
    std::vector<feedlane_batch_record> slots(there + 1, fresh<feedlane_batch_record>());
    std::uint64_t count = 0;
    CHECK(observe(l.get(), feedlane_monitor_get_trace, FEEDLANE_SLOTS, slots.data(), slots.size(), &count) ==
          FEEDLANE_OK);
    REQUIRE(count == there);
    slots.resize(count);
    for (const feedlane_batch_record& r : slots)
      if (r.task != 0 && r.yielded_ns != 0 && r.released_ns == 0) found.push_back(r);
    return found;
  };
  REQUIRE(held().size() == 1);
  CHECK(held()[0].batch == 0);
  CHECK(held()[0].yielded_ns == b.yielded_ns);
  REQUIRE(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  CHECK(held().empty());
}

// promise: monitor-errors-counted
TEST_CASE("errors that differ only in numbers are counted together, and restarts are counted by reason") {
  Setup s(40, 1);
  s.workers(2);
  s.plan.fail_index = 3;
  s.plan.end_index = 7;
  s.plan.end_step = 10;
  s.plan.end_attempts = 1;
  s.plan.end_signal = SIGKILL;
  s.config.max_kills_per_batch = 2;
  const Loader l = s.create();
  for (const std::int64_t epoch : {0, 1}) {
    begin(l.get(), epoch);
    (void)take_outcomes(l.get());
  }
  const std::vector<feedlane_error_record> errors = errors_of(l.get());
  const auto count_of = [&](std::int32_t kind, std::int32_t code) {
    std::uint64_t count = 0;
    for (const feedlane_error_record& e : errors)
      if (e.kind == kind && e.code == code) count += e.count;
    return count;
  };
  const auto rows_of = [&](std::int32_t kind) {
    return std::count_if(errors.begin(), errors.end(), [=](const feedlane_error_record& e) { return e.kind == kind; });
  };
  CHECK(count_of(0, FEEDLANE_E_SAMPLE) == 2);
  CHECK(rows_of(0) == 1);
  CHECK(count_of(FEEDLANE_EVENT_WORKER_DIED, FEEDLANE_E_PEER_DEAD) == 8);
  CHECK_MESSAGE(rows_of(FEEDLANE_EVENT_WORKER_DIED) == 1, "pids and workers differ");
  for (const feedlane_error_record& e : errors) {
    CHECK(e.first_ns <= e.last_ns);
    CHECK(std::string(e.text) != "");
  }
  const feedlane_stats stats = stats_of(l.get());
  CHECK(stats.restarts_signal == stats.restarts);
  CHECK(stats.restarts >= 5);  // one that dies after the last batch of an epoch is not replaced
  CHECK(stats.restarts_exit + stats.restarts_hung + stats.restarts_invalid + stats.restarts_unattached == 0);
}

// promise: monitor-errors-counted
TEST_CASE("restarts are counted separately for workers that exit and workers that hang") {
  {
    Setup s(20, 1);
    s.workers(1);
    s.plan.end_index = 5;
    s.plan.end_attempts = 1;
    const Loader l = s.create();
    (void)take_epoch(l.get(), 0);
    CHECK(stats_of(l.get()).restarts_exit == 1);
  }
  Setup s(20, 1);
  s.workers(1);
  int never[2] = {-1, -1};  // inherited by the worker, which reads from it for ever
  REQUIRE(::pipe(never) == 0);
  s.plan.stuck_fd = never[0];
  s.plan.stuck_index = 5;
  s.config.task_timeout_ns = 200'000'000;
  const Loader l = s.create();
  (void)take_epoch(l.get(), 0);
  CHECK(stats_of(l.get()).restarts_hung == 1);
  CHECK(stats_of(l.get()).restarts == 1);
  (void)::close(never[0]);
  (void)::close(never[1]);
}

// promise: monitor-name-and-position
TEST_CASE("the monitor functions refuse invalid arguments") {
  Setup s(2, 1);
  const Loader l = s.create();
  auto e = fresh<feedlane_error_record>();
  CHECK(observe(l.get(), feedlane_monitor_get_error, -1, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(observe(l.get(), feedlane_monitor_get_error, 0, &e) == FEEDLANE_END);
  CHECK(observe(l.get(), feedlane_monitor_get_info, nullptr) == FEEDLANE_E_ARGUMENT);
  auto i = fresh<feedlane_loader_info>();
  i.size = 0;
  CHECK(observe(l.get(), feedlane_monitor_get_info, &i) == FEEDLANE_E_ABI);
  CHECK(observe(nullptr, feedlane_monitor_get_info, &i) == FEEDLANE_E_ARGUMENT);
  std::uint64_t bytes = 0;
  CHECK(observe(l.get(), feedlane_monitor_report, nullptr, 1, &bytes, nullptr) == FEEDLANE_E_ARGUMENT);
  auto ring = fresh<feedlane_ring_info>();
  CHECK(feedlane_monitor_ring(::getpid(), 0, &ring, nullptr) == FEEDLANE_END);
  CHECK(feedlane_monitor_ring(::getpid(), -1, &ring, nullptr) == FEEDLANE_E_ARGUMENT);
  auto config = fresh<feedlane_ring_config>();
  config.message_bytes = 8;
  config.capacity = 16;
  feedlane_rx* rx = nullptr;
  REQUIRE(feedlane_rx_create(&config, &rx, nullptr) == FEEDLANE_OK);
  REQUIRE(feedlane_monitor_ring(::getpid(), 0, &ring, nullptr) == FEEDLANE_OK);
  CHECK(ring.message_bytes == 8);
  CHECK(ring.capacity == 16);
  CHECK(ring.received == 0);
  (void)feedlane_rx_destroy(&rx);
}
