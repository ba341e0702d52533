// SPDX-License-Identifier: Apache-2.0
// Several epochs: kept workers, new workers, epochs given up in the middle.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

std::set<std::int64_t> pids_of(const feedlane_loader* l, std::int32_t workers) {
  std::set<std::int64_t> pids;
  for (std::int32_t w = 0; w < workers; w++) pids.insert(worker_of(l, w).pid);
  return pids;
}

std::set<std::int64_t> makers_of(const std::vector<Taken>& taken) {
  std::set<std::int64_t> pids;
  for (const Taken& t : taken)
    for (std::size_t row = 0; row < t.indices.size(); row++) pids.insert(t.value("pid", row));
  return pids;
}

struct Epochs {
  explicit Epochs(std::int32_t keep) : setup(12, 2) {
    setup.workers(2).fields({field("index", int64_type), field("pid", int64_type), field("generation", int64_type)});
    setup.config.keep_workers = keep;
    setup.plan.report_fd = reports.fd();
    loader = setup.create();
  }
  Reports reports;
  Setup setup;
  Loader loader;
};

}  // namespace

// promise: start-open, keep-workers-outlive, keep-workers-no-fork
TEST_CASE("kept workers are the same processes in every epoch and open their data set once") {
  Epochs e(1);
  const std::vector<Taken> first = take_epoch(e.loader.get(), 0);
  const std::set<std::int64_t> pids = pids_of(e.loader.get(), 2);
  CHECK(pids.size() == 2);
  CHECK(pids.count(0) == 0);
  for (std::int64_t epoch = 1; epoch < 4; epoch++) {
    const std::vector<Taken> taken = take_epoch(e.loader.get(), epoch);
    check_sequence(taken, 12, 2);
    CHECK(pids_of(e.loader.get(), 2) == pids);
    const std::set<std::int64_t> makers = makers_of(taken);
    CHECK(std::includes(pids.begin(), pids.end(), makers.begin(), makers.end()));
  }
  wait_until_ready(e.loader.get(), 2);    // the other may have made everything before the trainer heard of one
  for (std::int32_t w = 0; w < 2; w++) {  // also where the trainer never had to wait
    CHECK(worker_of(e.loader.get(), w).state == FEEDLANE_WORKER_READY);
    CHECK(worker_of(e.loader.get(), w).generation == 0);
  }
  e.loader.reset();
  int opened = 0;
  int closed = 0;
  for (const Report& r : e.reports.drain()) {
    opened += r.what == Report::opened ? 1 : 0;
    closed += r.what == Report::closed ? 1 : 0;
  }
  CHECK(opened == 2);
  CHECK_MESSAGE(closed == 2, "each open data set is closed when its worker ends");
}

// promise: keep-workers-outlive
TEST_CASE("without keep_workers every epoch starts its own processes, and no process is left after the epoch") {
  Epochs e(0);
  std::set<std::int64_t> all;
  for (std::int64_t epoch = 0; epoch < 3; epoch++) {
    begin(e.loader.get(), epoch);
    const std::set<std::int64_t> pids = pids_of(e.loader.get(), 2);
    CHECK(pids.size() == 2);
    wait_until_ready(e.loader.get(), 2);  // one that attaches late may have no part in so short an epoch
    check_sequence(take_rest(e.loader.get()), 12, 2);
    all.insert(pids.begin(), pids.end());
    CHECK_FALSE(has_children());
    for (std::int32_t w = 0; w < 2; w++) {
      CHECK(worker_of(e.loader.get(), w).state == FEEDLANE_WORKER_NONE);
      CHECK(worker_of(e.loader.get(), w).pid == 0);
    }
  }
  CHECK(all.size() == 6);
  CHECK_MESSAGE(stats_of(e.loader.get()).restarts == 0, "a new epoch's workers are not counted as restarts");
  int closed = 0;
  for (const Report& r : e.reports.drain()) closed += r.what == Report::closed ? 1 : 0;
  CHECK(closed == 6);
}

// promise: keep-workers-outlive
TEST_CASE("next returns END without waiting for a worker that hasn't attached yet, and no worker stays") {
  int tickets[2] = {-1, -1};
  REQUIRE(::pipe2(tickets, O_NONBLOCK) == 0);
  REQUIRE(::write(tickets[1], "22", 2) == 2);  // for the first two; who comes to replace one never attaches
  const std::string fd = std::to_string(tickets[0]);
  Setup s(4);
  s.workers(2);
  s.argv = {worker_program, "ticket", fd.c_str(), nullptr};
  const Gate gate;
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = 3;
  s.plan.end_index = 3;
  s.plan.end_attempts = 1;
  s.plan.end_signal = SIGKILL;
  s.config.stop_timeout_ns = 3'000'000'000;
  const Loader l = s.create();
  begin(l.get(), 0);
  for (std::int64_t batch = 0; batch < 3; batch++) CHECK(take(l.get()).batch == batch);
  gate.open();
  const Taken last = take(l.get());
  CHECK(last.batch == 3);
  CHECK(last.attempt == 1);
  CHECK(take(l.get()).status == FEEDLANE_END);
  CHECK_FALSE(has_children());
  for (std::int32_t w = 0; w < 2; w++) CHECK(worker_of(l.get(), w).state == FEEDLANE_WORKER_NONE);
  CHECK(::close(tickets[0]) == 0);
  CHECK(::close(tickets[1]) == 0);
}

// promise: end-repeated
TEST_CASE("next returns END again after the end of an epoch and E_STATE before begin, also with workers") {
  Epochs e(1);
  auto b = fresh<feedlane_batch>();
  CHECK(feedlane_loader_next(e.loader.get(), 0, &b, nullptr) == FEEDLANE_E_STATE);
  (void)take_epoch(e.loader.get(), 0);
  CHECK(take(e.loader.get()).status == FEEDLANE_END);
  CHECK(take(e.loader.get()).status == FEEDLANE_END);
  CHECK(feedlane_loader_stop(e.loader.get(), nullptr) == FEEDLANE_OK);
  CHECK(take(e.loader.get()).status == FEEDLANE_E_STATE);
  check_sequence(take_epoch(e.loader.get(), 1), 12, 2);
}

// promise: end-abandoned-epoch, trainer-abandons
TEST_CASE("begin during an epoch abandons that epoch, and its late results are counted but never yielded") {
  Setup s(16, 2);
  s.workers(2).fields({field("index", int64_type), field("epoch", int64_type)});
  s.config.keep_workers = 1;
  const Gate gate;
  const Reports reports;
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = 2;  // batch 1 is in a worker's hands when the epoch changes
  s.plan.report_fd = reports.fd();
  const Loader l = s.create();
  begin(l.get(), 0);
  CHECK(take(l.get()).batch == 0);
  for (auto r = reports.wait_for(Report::began); r && r->index != 2;) r = reports.wait_for(Report::began);
  const std::set<std::int64_t> pids = pids_of(l.get(), 2);
  begin(l.get(), 1);
  gate.open();
  const std::vector<Taken> taken = take_rest(l.get());
  check_sequence(taken, 16, 2);
  for (const Taken& t : taken) {
    CHECK(t.epoch == 1);
    for (std::size_t row = 0; row < t.indices.size(); row++) CHECK(t.value("epoch", row) == 1);
  }
  CHECK_MESSAGE(eventually([&] {
                  (void)feedlane_loader_poll(l.get(), nullptr);
                  return stats_of(l.get()).slots_free == stats_of(l.get()).slots;
                }),
                "its slots come back");
  CHECK(stats_of(l.get()).late_results >= 1);
  CHECK_MESSAGE(pids_of(l.get(), 2) == pids, "an epoch given up costs no worker");
}

// promise: end-abandoned-epoch
TEST_CASE("a task of an abandoned epoch is not made if no worker has begun the task") {
  Setup s(16);
  s.workers(1).config.keep_workers = 1;
  s.config.prefetch_factor = 8;
  const Gate gate;
  const Reports reports;
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = 0;
  s.plan.report_fd = reports.fd();
  const Loader l = s.create();
  begin(l.get(), 0);
  (void)reports.wait_for(Report::began);
  begin(l.get(), 1);
  gate.open();
  check_sequence(take_rest(l.get()), 16, 1);
  CHECK_MESSAGE(worker_of(l.get(), 0).samples == 17, "the one that it had in hand, and the next epoch's");
}

// promise: end-abandoned-epoch
TEST_CASE("no slot is lost when many epochs in a row are abandoned") {
  Setup s(40, 2);
  s.workers(2);
  s.config.keep_workers = 1;
  const Loader l = s.create();
  for (std::int64_t epoch = 0; epoch < 50; epoch++) {
    begin(l.get(), epoch);
    for (std::int64_t i = 0; i < epoch % 5; i++) {
      const Taken t = take(l.get());
      REQUIRE(t.status == FEEDLANE_OK);
      CHECK(t.batch == i);
      CHECK(t.epoch == epoch);
      CHECK(t.value("index") == 2 * i);
    }
  }
  const std::vector<Taken> rest = take_rest(l.get());
  CHECK(rest.size() == 16);
  CHECK(rest.front().batch == 4);
  CHECK(stats_of(l.get()).slots_held == 0);
  check_sequence(take_epoch(l.get(), 50), 40, 2);
}

// promise: end-held-batch
TEST_CASE("a batch held across begin keeps its content while workers fill other slots") {
  Setup s(8, 2);
  s.workers(2);
  s.config.keep_workers = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  auto b = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
  for (std::int64_t epoch = 1; epoch < 4; epoch++) check_sequence(take_epoch(l.get(), epoch), 8, 2);
  const Taken kept = copy_of(b);
  CHECK(kept.epoch == 0);
  CHECK(kept.indices == std::vector<std::int64_t>{0, 1});
  CHECK(kept.value("index", 1) == 1);
  CHECK(kept.seed(1) == feedlane_row_seed(99, 0, 1));
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
}
