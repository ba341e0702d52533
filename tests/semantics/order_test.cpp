// SPDX-License-Identifier: Apache-2.0
// Dispatch and order.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <thread>
#include <vector>

#include "support/events.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

// promise: loader-either-order, order-in-order
TEST_CASE("in order, batch i is the i-th to be yielded, whichever worker makes it and however late") {
  Setup s(24, 2);
  s.workers(4);
  s.config.prefetch_factor = 2;
  const Gate gate;
  const Reports reports;
  s.plan.gate_fd = gate.fd();
  s.plan.report_fd = reports.fd();
  s.plan.gate_index = 0;
  const Loader l = s.create();
  begin(l.get(), 0);
  // Of the window's 8 batches, batch 0 stands before the gate and one more queues behind it; the others are made.
  std::set<std::int64_t> made;
  while (made.size() < 6) {
    const auto r = reports.wait_for(Report::began);
    REQUIRE(r);
    if (r->index % 2 == 1) made.insert(r->batch);
  }
  CHECK(made.count(0) == 0);
  CHECK_MESSAGE(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT, "later batches wait for their turn");
  gate.open();
  const std::vector<Taken> taken = take_rest(l.get());
  check_sequence(taken, 24, 2);
  std::set<std::int32_t> makers;
  for (const Taken& t : taken) makers.insert(t.worker);
  CHECK(makers.size() > 1);
}

// promise: prefetch-default, order-first-tasks, order-window
TEST_CASE("the window never has more than prefetch_factor * workers batches that are not yet yielded") {
  for (const std::int32_t factor : {1, 2, 3}) {
    CAPTURE(factor);
    Setup s(30);
    s.workers(2);
    s.config.prefetch_factor = factor;
    const Gate gate;
    const Reports reports;
    s.plan.gate_fd = gate.fd();
    s.plan.gate_index = -2;
    s.plan.report_fd = reports.fd();
    const Loader l = s.create();
    const std::int64_t window = std::int64_t{2} * factor;
    const auto outstanding = [&] {
      const feedlane_stats stats = stats_of(l.get());
      return static_cast<std::int64_t>(stats.slots - stats.slots_free - stats.slots_held);
    };
    CHECK(outstanding() == 0);
    begin(l.get(), 0);
    CHECK_MESSAGE(outstanding() == window, "all of the window goes out at once");
    gate.open();
    std::int64_t yielded = 0;
    std::int64_t furthest = -1;
    for (;;) {
      for (const Report& r : reports.drain()) furthest = std::max(furthest, r.batch);
      CHECK(furthest < yielded + window);
      const Taken taken = take(l.get());
      if (taken.status == FEEDLANE_END) break;
      REQUIRE(taken.status == FEEDLANE_OK);
      yielded++;
      CHECK_MESSAGE(outstanding() == std::min(window, 30 - yielded), "one goes out for each that is yielded");
    }
    CHECK(yielded == 30);
  }
}

// promise: prefetch-default
TEST_CASE("prefetch_factor 0 means 2") {
  Setup s(30);
  s.workers(3);
  const Loader l = s.create();
  begin(l.get(), 0);
  const feedlane_stats stats = stats_of(l.get());
  CHECK(stats.slots - stats.slots_free == 6);
}

// promise: prefetch-default
TEST_CASE("the whole window is dispatched even while the trainer holds as many batches as it declared") {
  Setup s(12);
  s.workers(2);
  s.config.prefetch_factor = 2;
  s.config.held = 3;
  const Loader l = s.create();
  begin(l.get(), 0);
  std::vector<feedlane_batch> held;
  for (int i = 0; i < 3; i++) {
    held.push_back(fresh<feedlane_batch>());
    REQUIRE(feedlane_loader_next(l.get(), patience_ns, &held.back(), nullptr) == FEEDLANE_OK);
  }
  const feedlane_stats stats = stats_of(l.get());
  CHECK(stats.slots_held == 3);
  CHECK_MESSAGE(stats.slots - stats.slots_free - stats.slots_held == 4, "the whole window is out all the same");
  for (const feedlane_batch& b : held) CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  CHECK(take_rest(l.get()).size() == 9);
}

// promise: next-slots-held, trainer-holds-all
TEST_CASE("next returns SLOTS_HELD if the trainer holds every slot, and continues after another thread releases them") {
  Setup s(20);
  s.workers(2);
  const Loader l = s.create();
  begin(l.get(), 0);
  std::vector<feedlane_batch> held;
  auto b = fresh<feedlane_batch>();
  Error e;
  std::int32_t status = FEEDLANE_OK;
  while ((status = feedlane_loader_next(l.get(), patience_ns, &b, &e)) == FEEDLANE_OK) held.push_back(b);
  CHECK(status == FEEDLANE_SLOTS_HELD);
  CHECK(e.code == FEEDLANE_SLOTS_HELD);
  CHECK(e.found == static_cast<std::int64_t>(held.size()));
  CHECK(held.size() == stats_of(l.get()).slots);
  for (std::size_t i = 0; i < held.size(); i++)
    CHECK(*static_cast<const std::int64_t*>(held[i].tensors[0].data) == static_cast<std::int64_t>(i));
  bool are_released = true;
  std::thread([&] {
    for (const feedlane_batch& h : held)
      are_released = feedlane_batch_release(l.get(), h.token) == FEEDLANE_OK && are_released;
  }).join();
  CHECK(are_released);
  CHECK(take_rest(l.get()).size() == 20 - held.size());
}

// promise: loader-drop-last
TEST_CASE("drop_last drops the incomplete last batch, and length does not count that batch") {
  for (const std::int32_t workers : {1, 3})
    for (const std::int64_t samples : {0, 3, 8, 10}) {
      CAPTURE(workers);
      CAPTURE(samples);
      Setup s(samples, 4);
      s.workers(workers);
      s.config.drop_last = 1;
      s.config.keep_workers = 1;
      const Loader l = s.create();
      std::int64_t length = -1;
      REQUIRE(length_of(l.get(), &length) == FEEDLANE_OK);
      CHECK(length == samples / 4);
      check_sequence(take_epoch(l.get(), 0), samples / 4 * 4, 4);
    }
}
