// SPDX-License-Identifier: Apache-2.0
// Workers that the death of their trainer doesn't kill: they end by themselves, with the task in hand finished.
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <thread>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// A trainer process with one worker and some batches of a sample, all sent at once; one sample waits for the gate.
struct Orphans {
  Orphans(std::int32_t start, std::int64_t gate_index, std::int64_t batches = 2) {
    trainer = std::make_unique<Child>(std::vector<int>{gate.fd(), reports.fd()}, [=, this](Findings& f) {
      Setup s(batches);
      s.workers(1);
      s.config.prefetch_factor = static_cast<std::int32_t>(batches);
      s.plan.gate_fd = gate.fd();
      s.plan.gate_index = gate_index;
      s.plan.report_fd = reports.fd();
      s.connect();
      s.config.keep_workers = 1;
      s.config.no_lifeline = 1;
      s.config.start = start;
      if (start == FEEDLANE_START_FORK) s.config.dataset = &s.dataset, s.config.argv = nullptr;
      feedlane_loader* loader = nullptr;
      EXPECT(f, feedlane_loader_create(&s.config, &loader, nullptr) == FEEDLANE_OK);
      EXPECT(f, feedlane_loader_begin(loader, 0, nullptr) == FEEDLANE_OK);
      auto batch = fresh<feedlane_batch>();
      while (feedlane_loader_next(loader, patience_ns, &batch, nullptr) == FEEDLANE_OK)
        (void)feedlane_batch_release(loader, batch.token);
      send_report(reports.fd(), {Report::opened, ::getpid(), 0, 0, 0, -1});
      for (;;) (void)::pause();
    });
  }
  void kill_trainer() const {
    (void)::kill(trainer->pid(), SIGKILL);
    // Not finish(): a forked worker holds what that waits for.
    CHECK(eventually([this] { return !is_running(trainer->pid()); }));
  }

  Gate gate;
  Reports reports;
  std::unique_ptr<Child> trainer;
};

}  // namespace

// promise: fault-no-lifeline, trainer-no-lifeline
TEST_CASE("without a lifeline a busy worker of a killed trainer finishes its task, takes no other task and exits") {
  for (const std::int32_t start : {FEEDLANE_START_SPAWN, FEEDLANE_START_FORK}) {
    CAPTURE(start);
    Orphans o(start, 0);
    const auto began = o.reports.wait_for(Report::began);
    REQUIRE(began.has_value());
    o.kill_trainer();
    CHECK(is_running(static_cast<pid_t>(began->pid)));
    o.gate.open();
    const auto next = o.reports.next();
    REQUIRE_MESSAGE(next.has_value(), "it was killed");
    CHECK_MESSAGE(next->what == Report::closed, "a task more lay in its ring");
    CHECK(eventually([&] { return !is_running(static_cast<pid_t>(began->pid)); }));
  }
}

// promise: fault-no-lifeline
TEST_CASE("without a lifeline a worker of a killed trainer takes no other task, even if a quick task came before") {
  Orphans o(FEEDLANE_START_SPAWN, 1, 3);
  auto began = o.reports.wait_for(Report::began);
  while (began && began->index != 1) began = o.reports.wait_for(Report::began);
  REQUIRE(began.has_value());
  o.kill_trainer();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // it looks no oftener than once in one
  o.gate.open();
  const auto next = o.reports.next();
  REQUIRE(next.has_value());
  CHECK_MESSAGE(next->what == Report::closed, "a task more lay in its ring");
}

// promise: fault-no-lifeline
TEST_CASE("without a lifeline an idle worker exits when its trainer is killed") {
  Orphans o(FEEDLANE_START_SPAWN, -1);
  REQUIRE(o.reports.wait_for(Report::opened).has_value());  // the worker's
  REQUIRE(o.reports.wait_for(Report::opened).has_value());  // the trainer's: it has both batches
  o.kill_trainer();
  const auto report = o.reports.next();
  REQUIRE(report.has_value());
  CHECK(report->what == Report::closed);
}
