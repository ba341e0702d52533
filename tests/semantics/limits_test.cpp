// SPDX-License-Identifier: Apache-2.0
// How often workers may die.
#include <doctest/doctest.h>

#include <csignal>
#include <string>
#include <vector>

#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// Every worker that gets sample 5 dies of it.
struct Deadly {
  explicit Deadly(std::int32_t workers, std::int64_t batch_size = 1) : setup(12, batch_size) {
    setup.workers(workers);
    setup.plan.end_index = 5;
    setup.plan.end_attempts = 1000;
    setup.plan.end_signal = SIGKILL;
  }
  Setup setup;
};

}  // namespace

// promise: fault-quarantine, worker-deadly-batch
TEST_CASE("only the batch that kills its worker every time fails with E_QUARANTINED, and the epoch continues") {
  for (const std::int32_t workers : {1, 3})
    for (const std::int32_t kills : {1, 2, 0}) {
      CAPTURE(workers);
      CAPTURE(kills);
      Deadly d(workers);
      d.setup.config.max_kills_per_batch = kills;
      const std::int32_t allowed = kills == 0 ? 3 : kills;
      const Loader l = d.setup.create();
      begin(l.get(), 2);
      for (std::int64_t batch = 0; batch < 12; batch++) {
        CAPTURE(batch);
        Error e;
        const Taken t = take(l.get(), &e);
        if (batch != 5) {
          REQUIRE_MESSAGE(t.status == FEEDLANE_OK, std::string(e.text));
          CHECK(t.batch == batch);
          CHECK(t.value("index") == batch);
          continue;
        }
        CHECK(t.status == FEEDLANE_E_QUARANTINED);
        CHECK(e.epoch == 2);
        CHECK(e.batch == 5);
        CHECK(std::string(e.argument) == "config.max_kills_per_batch");
        CHECK(e.found == allowed);
        CHECK(e.needed == allowed);
        CHECK(e.worker >= 0);
        CHECK_MESSAGE(e.attempt == allowed - 1, "the last one there was");
      }
      CHECK(take(l.get()).status == FEEDLANE_END);
      CHECK(stats_of(l.get()).quarantined == 1);
      CHECK(stats_of(l.get()).restarts == static_cast<std::uint64_t>(allowed));
    }
}

// promise: fault-quarantine
TEST_CASE("workers killed by one batch do not count against the next batch in the same slot") {
  Setup s(60);
  s.workers(1);
  s.plan.end_index = 1;
  s.plan.end_step = 3;
  s.plan.end_attempts = 1;
  s.plan.end_signal = SIGKILL;
  s.config.max_kills_per_batch = 2;
  const Loader l = s.create();
  check_sequence(take_epoch(l.get(), 0), 60, 1);
  CHECK(stats_of(l.get()).restarts == 20);
  CHECK(stats_of(l.get()).quarantined == 0);
}

// promise: fault-quarantine
TEST_CASE("a batch that kills its worker is quarantined in each epoch, and every epoch yields its other batches") {
  Deadly d(2, 3);
  d.setup.config.max_kills_per_batch = 1;
  d.setup.config.keep_workers = 1;
  const Loader l = d.setup.create();
  for (std::int64_t epoch = 0; epoch < 2; epoch++) {
    begin(l.get(), epoch);
    std::vector<std::int32_t> outcomes;
    for (int i = 0; i < 5; i++) outcomes.push_back(take(l.get()).status);
    const std::vector<std::int32_t> expected{FEEDLANE_OK, FEEDLANE_E_QUARANTINED, FEEDLANE_OK, FEEDLANE_OK,
                                             FEEDLANE_END};
    CHECK(outcomes == expected);
  }
  CHECK(stats_of(l.get()).quarantined == 2);
}

// promise: fault-max-restarts, worker-max-restarts
TEST_CASE("once workers have died more often than max_restarts, next returns E_RESTARTS until begin") {
  for (const std::int32_t most : {-1, 1, 2}) {
    CAPTURE(most);
    Deadly d(1);
    d.setup.config.max_restarts = most;
    d.setup.config.max_kills_per_batch = 100;
    const std::int64_t allowed = most < 0 ? 0 : most;
    const Loader l = d.setup.create();
    begin(l.get(), 0);
    for (std::int64_t batch = 0; batch < 5; batch++) CHECK(take(l.get()).batch == batch);
    for (int i = 0; i < 3; i++) {
      Error e;
      CHECK(take(l.get(), &e).status == FEEDLANE_E_RESTARTS);
      CHECK(std::string(e.argument) == "config.max_restarts");
      CHECK(e.found == allowed + 1);
      CHECK(e.needed == allowed);
      CHECK(e.worker == 0);
      CHECK(e.says("signal 9"));
    }
    CHECK(stats_of(l.get()).restarts == static_cast<std::uint64_t>(allowed));
    begin(l.get(), 1);
    for (std::int64_t batch = 0; batch < 5; batch++) CHECK(take(l.get()).batch == batch);
    CHECK_MESSAGE(take(l.get()).status == FEEDLANE_E_RESTARTS, "the count is of the loader's whole life");
  }
}

// promise: fault-max-restarts
TEST_CASE("the text of E_RESTARTS contains the unexpected exit status of the worker") {
  Deadly d(1);
  d.setup.config.max_restarts = -1;
  d.setup.plan.end_signal = 0;
  const Loader l = d.setup.create();
  begin(l.get(), 0);
  for (std::int64_t batch = 0; batch < 5; batch++) CHECK(take(l.get()).batch == batch);
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_RESTARTS);
  CHECK(e.says("exited with status 3"));
}

// promise: fault-exit-during-batch, worker-exits-in-batch
TEST_CASE("a worker program that exits during a batch is treated like a killed one, and its exit status is reported") {
  Setup s(2);
  s.workers(1, "quit");
  const Loader l = s.create();
  begin(l.get(), 0);
  for (std::int64_t batch = 0; batch < 2; batch++) {
    Error e;
    CHECK(take(l.get(), &e).status == FEEDLANE_E_QUARANTINED);
    CHECK(e.batch == batch);
    CHECK_MESSAGE(e.says("3 workers have died while making this batch; the last one: process "), std::string(e.text));
    CHECK_MESSAGE(e.says("exited with status 9"), std::string(e.text));
  }
  CHECK(take(l.get()).status == FEEDLANE_END);
  const std::vector<feedlane_event> deaths = events_of(l.get(), FEEDLANE_EVENT_WORKER_DIED);
  CHECK(deaths.size() == 6);
  for (std::size_t i = 0; i < deaths.size(); i++) {
    CHECK(deaths[i].what.batch == static_cast<std::int64_t>(i / 3));
    CHECK(std::string(deaths[i].what.text).find("exited with status 9") != std::string::npos);
  }
}

// promise: fault-exit-during-batch
TEST_CASE("a worker program that leaves but doesn't exit is sent SIGTERM after stop_timeout_ns, and then SIGKILL") {
  for (const bool ignores : {false, true}) {
    CAPTURE(ignores);
    Setup s(1);
    s.workers(1, ignores ? "linger-on" : "linger");
    s.config.max_kills_per_batch = 1;
    s.config.stop_timeout_ns = s.config.term_timeout_ns = 20'000'000;
    const Loader l = s.create();
    begin(l.get(), 0);
    Error e;
    CHECK(take(l.get(), &e).status == FEEDLANE_E_QUARANTINED);
    const std::string how = ignores ? "was killed by signal 9 (SIGKILL), because it had left and did not exit"
                                    : "was killed by signal 15 (SIGTERM), because it had left and did not exit";
    CHECK_MESSAGE(e.says(how), std::string(e.text));
    const std::vector<feedlane_event> deaths = events_of(l.get(), FEEDLANE_EVENT_WORKER_DIED);
    REQUIRE(deaths.size() == 1);
    CHECK(std::string(deaths[0].what.text).find(how) != std::string::npos);
  }
}
