// SPDX-License-Identifier: Apache-2.0
// What is said to bound a run.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>

#include "observe.hpp"
#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// Calls `run` with a time and then with twice that, until it returns true: on a machine that is busy with others a process waits
// milliseconds for a processor, and that really bounds a run whose own times are as short.
template <class F>
void for_longer_and_longer(std::int64_t first_ns, F&& run) {
  constexpr int doublings = 6;
  for (int i = 0; i < doublings; i++)
    if (run(first_ns << i)) return;
  CHECK_MESSAGE(false, "the bound was never the one of the run");
}

bool check_bound(const feedlane_diagnosis& d, std::int32_t bound) {
  if (d.bound != bound) MESSAGE(d.text);
  return d.bound == bound;
}

}  // namespace

// promise: monitor-bottleneck
TEST_CASE("the diagnosis names a slow data set, a slow trainer or a single slow worker as the bound") {
  Slow slow;
  for_longer_and_longer(3'000'000, [&](std::int64_t sample_ns) {
    slow.sample_ns = sample_ns;
    Setup s(60, 1);
    s.forked(2, slow_dataset(slow));
    const Loader l = s.create();
    (void)take_epoch(l.get(), 0);
    const feedlane_diagnosis d = diagnosis_of(l.get());
    CHECK(d.batches == 60);
    CHECK(d.samples == 60);
    CHECK(d.worker == -1);
    return check_bound(d, FEEDLANE_BOUND_DATA);
  });
  slow.sample_ns = 0;
  for_longer_and_longer(5'000'000, [&](std::int64_t batch_ns) {
    Setup s(60, 1);
    s.forked(2, slow_dataset(slow));
    s.config.keep_workers = 1;
    const Loader l = s.create();
    (void)take_epoch(l.get(), 0);
    begin(l.get(), 1);
    train_slowly(l.get(), batch_ns);
    const feedlane_diagnosis d = diagnosis_of(l.get());
    CHECK(d.asked == 59);
    CHECK(report_of(l.get()).find("epoch 1: 60 batches of 60") == 0);
    if (!check_bound(d, FEEDLANE_BOUND_TRAINER)) return false;
    CHECK(report_of(l.get()).find("bound: the trainer") != std::string::npos);
    return d.ready >= 50;
  });
  slow.slow_worker = 1;
  for_longer_and_longer(4'000'000, [&](std::int64_t sample_ns) {
    slow.sample_ns = sample_ns;
    Setup s(80, 1);
    s.forked(3, slow_dataset(slow));
    const Loader l = s.create();
    (void)take_epoch(l.get(), 0);
    const feedlane_diagnosis d = diagnosis_of(l.get());
    return check_bound(d, FEEDLANE_BOUND_WORKER) && d.worker == 1;
  });
}

// promise: monitor-bottleneck
TEST_CASE("a slow trainer is diagnosed as the bound even if the data set takes long to open") {
  Slow slow;
  for_longer_and_longer(8'000'000, [&](std::int64_t batch_ns) {
    slow.open_ns = 10 * batch_ns;
    Setup s(60, 1);
    s.forked(2, slow_dataset(slow));
    const Loader l = s.create();
    begin(l.get(), 0);
    train_slowly(l.get(), batch_ns);
    const feedlane_diagnosis d = diagnosis_of(l.get());
    CHECK(d.start_ns > d.interval_ns / 20);
    return check_bound(d, FEEDLANE_BOUND_TRAINER);
  });
}

// promise: monitor-bottleneck
TEST_CASE("a stopped worker is diagnosed as the bound while next waits for its batch") {
  Setup s(100, 1);
  s.workers(2);
  s.config.keep_workers = 1;
  s.config.dispatch = FEEDLANE_DISPATCH_ROUND_ROBIN;  // else the other worker may take over all that this one had to do
  const Loader l = s.create();
  begin(l.get(), 0);
  wait_until_ready(l.get(), 2);
  (void)take(l.get());
  const feedlane_worker_stats worker = worker_of(l.get(), 1);
  REQUIRE(::kill(static_cast<pid_t>(worker.pid), SIGSTOP) == 0);
  std::thread trainer([&] { (void)take_outcomes(l.get()); });
  CHECK(eventually([&] {
    const feedlane_diagnosis d = diagnosis_of(l.get());
    return d.bound == FEEDLANE_BOUND_WORKER && d.worker == 1 &&
           std::string(d.text).find("stopped") != std::string::npos;
  }));
  REQUIRE(::kill(static_cast<pid_t>(worker.pid), SIGCONT) == 0);
  trainer.join();
}

// promise: monitor-bottleneck
TEST_CASE("the bound is STARTING while data sets are being opened, and NOTHING before the first epoch") {
  Setup s(10, 1);
  s.workers(2);
  const Gate gate;
  s.plan.gate_fd = gate.fd();
  s.plan.gate_open = 1;
  const Loader l = s.create();
  CHECK(diagnosis_of(l.get()).bound == FEEDLANE_BOUND_NOTHING);
  begin(l.get(), 0);
  auto b = fresh<feedlane_batch>();
  CHECK(eventually([&] {
    (void)feedlane_loader_next(l.get(), 1'000'000, &b, nullptr);
    return worker_of(l.get(), 0).state == FEEDLANE_WORKER_OPENING &&
           worker_of(l.get(), 1).state == FEEDLANE_WORKER_OPENING;
  }));
  const feedlane_diagnosis d = diagnosis_of(l.get());
  CHECK_MESSAGE(d.bound == FEEDLANE_BOUND_STARTING, d.text);
  CHECK(std::string(d.text).find("2 of 2 are opening their data sets") != std::string::npos);
  CHECK(worker_of(l.get(), 0).state_since_ns <= now_ns());
  gate.open();
  (void)take_outcomes(l.get());
}
