// SPDX-License-Identifier: Apache-2.0
// What is said to bound a run, from figures of two moments.
#include "monitor/diagnosis.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace feedlane;
using namespace feedlane::monitor;

namespace {

constexpr std::uint64_t second = 1'000'000'000;

// One second of an epoch with two workers, in which nothing has happened.
struct Run {
  Snapshot before;
  Snapshot after;

  Run() {
    for (Snapshot* s : {&before, &after}) {
      s->workers.resize(2);
      s->exposed.resize(2);
      s->work.resize(2);
      s->oldest.resize(2);
      s->delays.assign(2, 0);
      s->trainer_delay = 0;
      s->stats.slots = s->stats.slots_free = 8;
      s->info.in_epoch = 1;
      s->info.workers = 2;
      for (feedlane_worker_stats& w : s->workers) w.state = FEEDLANE_WORKER_READY;
    }
    before.at_ns = 10 * second;
    after.at_ns = 11 * second;
    after.stats.batches = 100;
  }
  void wait(double share) { after.stats.wait_ns = static_cast<std::uint64_t>(share * second); }
  void work(double share) {
    for (feedlane_worker_stats& w : after.workers) w.work_ns = static_cast<std::uint64_t>(share * second);
  }
  void hold_up(double share) { after.delays.assign(2, static_cast<std::int64_t>(share * second)); }
  [[nodiscard]] feedlane_diagnosis diagnosis() const { return diagnose(before, after); }
};

}  // namespace

// promise: monitor-bottleneck
TEST_CASE("busy workers and a waiting trainer are diagnosed as a slow data set") {
  Run run;
  run.wait(0.6);
  run.work(0.95);
  CHECK(run.diagnosis().bound == FEEDLANE_BOUND_DATA);
  run.hold_up(0.1);  // less than explains the wait
  CHECK(run.diagnosis().bound == FEEDLANE_BOUND_DATA);
}

TEST_CASE("workers that wait long for a processor are diagnosed as too few processors, with their share of the time") {
  Run run;
  run.wait(0.6);
  run.work(0.95);
  run.hold_up(0.45);
  const feedlane_diagnosis d = run.diagnosis();
  CHECK(d.bound == FEEDLANE_BOUND_PROCESSORS);
  CHECK(std::string(d.text).find("waited for a processor for 45 % of the time") != std::string::npos);
}

TEST_CASE("a trainer that waits for a processor is diagnosed as too few processors") {
  Run run;
  run.wait(0.2);
  run.work(0.5);
  run.after.trainer_delay = second / 5;
  CHECK(run.diagnosis().bound == FEEDLANE_BOUND_PROCESSORS);
}

// promise: monitor-bottleneck
TEST_CASE("idle workers are not diagnosed as a slow data set, even if their wait for a processor is unknown") {
  Run run;
  run.wait(0.09);
  run.after.delays.assign(2, -1);
  const feedlane_diagnosis d = run.diagnosis();
  CHECK(d.bound == FEEDLANE_BOUND_PROCESSORS);
  CHECK(std::string(d.text).find("is unknown") != std::string::npos);
}

TEST_CASE("if workers work for less time than the trainer waits, the advice is to use none, with the time of a batch") {
  Run run;
  run.wait(0.6);
  run.work(0.2);
  run.after.stats.batches = 1000;
  const feedlane_diagnosis d = run.diagnosis();
  CHECK(d.bound == FEEDLANE_BOUND_PROCESSORS);
  CHECK(std::string(d.text).find("workers work for 400 us, and the trainer waits for 600 us") != std::string::npos);
  CHECK(std::string(d.advice).find("num_workers=0): without workers a batch would take about 800 us instead of 1 ms") !=
        std::string::npos);
  run.after.stats.batches = 10;  // too few to say so
  CHECK(std::string(run.diagnosis().advice).find("num_workers=0") == std::string::npos);
}

TEST_CASE("without workers, the advice is to use some only if batches take long enough") {
  Run run;
  run.before.workers.clear();
  run.after.workers.clear();
  run.wait(0.9);
  const auto advice = [&] { return std::string(run.diagnosis().advice); };
  CHECK(advice().find("set config.workers") != std::string::npos);  // 9 ms
  run.after.stats.batches = 100'000;
  CHECK(advice().find("set config.workers") == std::string::npos);  // 9 us
}

TEST_CASE("one busy worker among idle workers is diagnosed as a slow data set if the trainer waits") {
  Run run;
  run.wait(0.4);
  run.after.workers[0].work_ns = second / 2;
  CHECK(run.diagnosis().bound == FEEDLANE_BOUND_DATA);
}

TEST_CASE("a delay missing in the first snapshot is unknown, except for a worker that started after the snapshot") {
  Run run;
  run.before.delays.assign(2, -1);
  run.before.workers[0].pid = run.before.workers[1].pid = 1;
  run.after.workers[1].generation = run.before.workers[1].generation + 1;
  run.after.delays = {static_cast<std::int64_t>(second / 4), static_cast<std::int64_t>(second / 4)};
  CHECK(delay_between(run.before, run.after, 0) == -1);
  CHECK(delay_between(run.before, run.after, 1) == doctest::Approx(second / 4));
}
