// SPDX-License-Identifier: Apache-2.0
// Who makes which batch, and in which order they come: dispatch, out of order, batch samplers.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// Sample 0 stands before the gate till it is opened.
struct Slow {
  Slow(std::int64_t samples, std::int32_t workers) : setup(samples) {
    setup.workers(workers);
    setup.plan.gate_fd = gate.fd();
    setup.plan.gate_index = 0;
  }
  Gate gate;
  Setup setup;
};

std::vector<std::int64_t> batches_of(const std::vector<Taken>& taken) {
  std::vector<std::int64_t> all;
  for (const Taken& t : taken) all.push_back(t.batch);
  return all;
}

std::vector<std::int64_t> count_up(std::int64_t n) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < n; i++) all.push_back(i);
  return all;
}

std::vector<std::int64_t> sorted(std::vector<std::int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

void check_content(const std::vector<Taken>& taken) {
  for (const Taken& t : taken)
    for (std::size_t row = 0; row < t.indices.size(); row++) {
      CHECK(t.value("index", row) == t.indices[row]);
      CHECK_MESSAGE(t.seed(row) == feedlane_row_seed(99, t.epoch, t.indices[row]), "whenever it is made");
    }
}

}  // namespace

// promise: loader-either-order, order-out-of-order, torch-slow-sample
TEST_CASE("out of order, each batch is yielded when it is finished, and a slow batch delays no other batch") {
  Slow slow(20, 2);
  slow.setup.config.out_of_order = 1;
  const Loader l = slow.setup.create();
  begin(l.get(), 0);
  // All others are the other worker's, also what stood behind it.
  std::vector<Taken> taken;
  for (int i = 0; i < 19; i++) {
    taken.push_back(take(l.get()));
    REQUIRE(taken.back().status == FEEDLANE_OK);
    CHECK(taken.back().batch != 0);
  }
  CHECK_MESSAGE(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT, "the one that is left is behind the gate");
  slow.gate.open();
  const std::vector<Taken> rest = take_rest(l.get());
  REQUIRE(rest.size() == 1);
  CHECK(rest[0].batch == 0);
  taken.insert(taken.end(), rest.begin(), rest.end());
  CHECK(sorted(batches_of(taken)) == count_up(20));
  check_content(taken);
}

// promise: order-out-of-order, torch-slow-sample
TEST_CASE("after many tiny batches, which few workers make, a slow one delays no other batch either") {
  constexpr std::int64_t count = 10'000;
  for (const std::int64_t slow_batch : {count / 2, count - 4}) {  // more are to come; the last ones are queued behind it
    Slow slow(count, 8);
    slow.setup.plan.gate_index = slow_batch;
    slow.setup.config.prefetch_factor = 8;
    slow.setup.config.out_of_order = 1;
    slow.setup.config.keep_workers = 1;
    const Loader l = slow.setup.create();
    slow.gate.open();
    CHECK(sorted(batches_of(take_epoch(l.get(), 0))) == count_up(count));
    for (std::int64_t epoch = 1; epoch < 10; epoch++) {
      slow.gate.shut();
      begin(l.get(), epoch);
      std::vector<Taken> taken;
      for (std::int64_t i = 1; i < count; i++) {
        taken.push_back(take(l.get()));
        REQUIRE(taken.back().status == FEEDLANE_OK);
        REQUIRE(taken.back().batch != slow_batch);
      }
      slow.gate.open();
      for (Taken& t : take_rest(l.get())) taken.push_back(std::move(t));
      CHECK(sorted(batches_of(taken)) == count_up(count));
    }
  }
}

// promise: order-window, order-in-order, torch-slow-sample
TEST_CASE(
    "with ordered delivery, next() waits for a slow batch while workers make only the other batches of the window") {
  Slow slow(20, 2);
  const Loader l = slow.setup.create();
  begin(l.get(), 0);
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    return worker_of(l.get(), 0).tasks + worker_of(l.get(), 1).tasks == 3;
  }));
  CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
  slow.gate.open();
  check_sequence(take_rest(l.get()), 20, 1);
}

// promise: order-out-of-order
TEST_CASE("out of order, every batch comes once, with the same content for any number of workers") {
  for (const std::int32_t workers : {0, 1, 2, 4})
    for (const std::int32_t round_robin : {0, 1}) {
      CAPTURE(workers);
      CAPTURE(round_robin);
      Setup s(61, 3);
      if (workers != 0) s.workers(workers);
      s.config.out_of_order = 1;
      s.config.dispatch = round_robin != 0 ? FEEDLANE_DISPATCH_ROUND_ROBIN : FEEDLANE_DISPATCH_LEAST_LOADED;
      s.config.keep_workers = workers != 0 ? 1 : 0;
      const Loader l = s.create();
      for (std::int64_t epoch = 0; epoch < 3; epoch++) {
        const std::vector<Taken> taken = take_epoch(l.get(), epoch);
        CHECK(sorted(batches_of(taken)) == count_up(21));
        check_content(taken);
        if (workers == 0) CHECK(batches_of(taken) == count_up(21));
      }
    }
}

// promise: order-out-of-order
TEST_CASE("out of order, no batch of an abandoned epoch is yielded in a later epoch") {
  Setup s(30);
  s.workers(2);
  s.config.out_of_order = 1;
  s.config.keep_workers = 1;
  const Loader l = s.create();
  for (std::int64_t epoch = 0; epoch < 10; epoch++) {
    begin(l.get(), epoch);
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < epoch; i++) {
      const Taken t = take(l.get());
      CHECK(t.epoch == epoch);
      CHECK(seen.insert(t.batch).second);
    }
  }
  CHECK(sorted(batches_of(take_epoch(l.get(), 10))) == count_up(30));
}

// promise: error-once-in-order
TEST_CASE("out of order, a failed batch is reported exactly once and every other batch is yielded") {
  for (const std::int32_t workers : {0, 3}) {
    CAPTURE(workers);
    Setup s(20);
    if (workers != 0) s.workers(workers);
    s.config.out_of_order = 1;
    s.plan.fail_index = 7;
    const Loader l = s.create();
    begin(l.get(), 0);
    const std::vector<Taken> taken = take_outcomes(l.get());
    CHECK(sorted(batches_of(taken)) == count_up(20));
    for (const Taken& t : taken) CHECK(t.status == (t.batch == 7 ? FEEDLANE_E_SAMPLE : FEEDLANE_OK));
  }
}

// promise: order-out-of-order
TEST_CASE("out of order, no batch is lost or yielded twice when workers are killed") {
  Setup s(40);
  s.workers(3);
  s.config.out_of_order = 1;
  s.config.prefetch_factor =
      1;  // what waits behind such a sample goes out again too: the next of them would end nobody
  s.plan.end_index = 3;
  s.plan.end_step = 10;
  s.plan.end_attempts = 1;
  s.plan.end_signal = SIGKILL;
  const Loader l = s.create();
  const std::vector<Taken> taken = take_epoch(l.get(), 0);
  CHECK(sorted(batches_of(taken)) == count_up(40));
  check_content(taken);
  CHECK(stats_of(l.get()).restarts == 4);
}

// promise: dispatch-least-loaded
TEST_CASE("with least-loaded dispatch a slow worker delays at most the two batches in its own queue") {
  Slow slow(40, 4);
  slow.setup.config.out_of_order = 1;
  const Loader l = slow.setup.create();
  begin(l.get(), 0);
  for (int i = 0; i < 38; i++) REQUIRE(take(l.get()).status == FEEDLANE_OK);
  slow.gate.open();
  CHECK(take_rest(l.get()).size() == 2);
}

// promise: dispatch-least-loaded
TEST_CASE("with least-loaded dispatch, equally loaded workers take turns") {
  Setup s(1);
  s.workers(3).config.keep_workers = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  wait_until_ready(l.get(), 3);
  std::int32_t last = take_rest(l.get()).at(0).worker;
  std::int64_t epoch = 1;
  // One that got a task while it was starting may still have to decline it.
  std::set<std::int32_t> makers;
  REQUIRE(eventually([&] {
    makers.insert(last = take_epoch(l.get(), epoch++).at(0).worker);
    return makers.size() == 3;
  }));
  for (const std::int64_t end = epoch + 7; epoch < end; epoch++) {
    const std::int32_t maker = take_epoch(l.get(), epoch).at(0).worker;
    CHECK(maker == (last + 1) % 3);
    last = maker;
  }
}

// promise: dispatch-round-robin, torch-batch-mod-workers
TEST_CASE("with round-robin dispatch worker i mod W makes batch i, and each epoch starts with worker 0") {
  for (const std::int32_t workers : {1, 3, 4})
    for (const std::int32_t keep : {0, 1}) {
      CAPTURE(workers);
      CAPTURE(keep);
      Setup s(29);
      s.workers(workers).fields({field("index", int64_type), field("worker", int64_type)});
      s.config.dispatch = FEEDLANE_DISPATCH_ROUND_ROBIN;
      s.config.keep_workers = keep;
      const Loader l = s.create();
      for (std::int64_t epoch = 0; epoch < 3; epoch++) {
        const std::vector<Taken> taken = take_epoch(l.get(), epoch);
        check_sequence(taken, 29, 1);
        for (const Taken& t : taken) {
          CHECK(t.worker == t.batch % workers);
          CHECK(t.value("worker") == t.worker);
        }
      }
    }
}

// promise: dispatch-round-robin
TEST_CASE("with round-robin dispatch a slow worker's batches are not given to other workers") {
  Slow slow(20, 2);
  slow.setup.config.dispatch = FEEDLANE_DISPATCH_ROUND_ROBIN;
  slow.setup.config.out_of_order = 1;
  const Loader l = slow.setup.create();
  begin(l.get(), 0);
  std::vector<Taken> taken;
  for (const std::int64_t batch : {1, 3, 5}) {
    taken.push_back(take(l.get()));
    CHECK(taken.back().batch == batch);
  }
  CHECK_MESSAGE(feedlane_loader_poll(l.get(), nullptr) == FEEDLANE_OK, "the window is full of the slow worker's");
  CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
  slow.gate.open();
  for (Taken& t : take_rest(l.get())) taken.push_back(std::move(t));
  CHECK(sorted(batches_of(taken)) == count_up(20));
  for (const Taken& t : taken) CHECK(t.worker == t.batch % 2);
}

// promise: dispatch-round-robin
TEST_CASE("with round-robin dispatch a dead worker's batches are made by its replacement") {
  Setup s(30);
  s.workers(3).fields({field("index", int64_type), field("generation", int64_type)});
  s.config.dispatch = FEEDLANE_DISPATCH_ROUND_ROBIN;
  s.plan.end_index = 7;
  s.plan.end_attempts = 1;
  s.plan.end_signal = SIGKILL;
  const Loader l = s.create();
  const std::vector<Taken> taken = take_epoch(l.get(), 0);
  check_sequence(taken, 30, 1);
  for (const Taken& t : taken) {
    CHECK(t.worker == t.batch % 3);
    CHECK(t.value("generation") == (t.batch >= 7 && t.batch % 3 == 1 ? 1 : 0));
  }
}

// ---- samplers that make batches ----

namespace {

Sampler batches_over(const Sampler& inner, std::int64_t batch_size, std::int32_t drop_last) {
  feedlane_sampler* s = nullptr;
  REQUIRE(batch_sampler(inner.get(), batch_size, drop_last, &s, nullptr) == FEEDLANE_OK);
  return Sampler(s);
}

// Batches of 1, 2, 3, 1, 2, 3 ... indices, counted up.
struct Growing {
  std::int64_t next = 0, batch = 0, batches = 7;
  static std::int32_t restart(void* self, std::int64_t, std::uint64_t, feedlane_error*) {
    *static_cast<Growing*>(self) = {};
    return FEEDLANE_OK;
  }
  static std::int32_t take(void* self, std::int64_t* indices, std::uint64_t, std::uint64_t* got, feedlane_error*) {
    auto& g = *static_cast<Growing*>(self);
    *got = 0;
    if (g.batch == g.batches) return FEEDLANE_END;
    for (std::int64_t i = 0; i <= g.batch % 3; i++) indices[(*got)++] = g.next++;
    g.batch++;
    return FEEDLANE_OK;
  }
};

}  // namespace

// promise: loader-drop-last, sampler-batches
TEST_CASE("the loader yields exactly the batches that its batch sampler draws") {
  for (const std::int32_t workers : {0, 2})
    for (const std::int32_t drop_last : {0, 1}) {
      CAPTURE(workers);
      CAPTURE(drop_last);
      Setup s(10, 0);
      if (workers != 0) s.workers(workers);
      s.sampler = batches_over(sequential(10), 4, drop_last);
      const Loader l = s.create();
      std::int64_t length = 0;
      REQUIRE(length_of(l.get(), &length) == FEEDLANE_OK);
      CHECK(length == (drop_last != 0 ? 2 : 3));
      for (std::int64_t epoch = 0; epoch < 2; epoch++)
        check_sequence(take_epoch(l.get(), epoch), drop_last != 0 ? 8 : 10, 4);
    }
}

// promise: sampler-custom-indices
TEST_CASE("a batch sampler's batches may have any size up to the sampler's batch size") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Growing growing;
    auto callbacks = fresh<feedlane_sampler_callbacks>();
    callbacks.user_data = &growing;
    callbacks.restart = Growing::restart;
    callbacks.next = Growing::take;
    callbacks.batch_rows = 3;
    feedlane_sampler* made = nullptr;
    REQUIRE(custom_sampler(&callbacks, &made, nullptr) == FEEDLANE_OK);
    Setup s(10, 0);
    if (workers != 0) s.workers(workers);
    s.sampler.reset(made);
    const Loader l = s.create();
    std::int64_t length = 0;
    REQUIRE(length_of(l.get(), &length) == FEEDLANE_OK);
    CHECK(length == -1);
    for (std::int64_t epoch = 0; epoch < 2; epoch++) {
      const std::vector<Taken> taken = take_epoch(l.get(), epoch);
      REQUIRE(taken.size() == 7);
      check_content(taken);
      std::int64_t next = 0;
      for (const Taken& t : taken) {
        CHECK(t.count == static_cast<std::uint64_t>(t.batch % 3 + 1));
        CHECK(t.shapes[0] == std::vector<std::int64_t>{t.batch % 3 + 1});
        for (const std::int64_t index : t.indices) CHECK(index == next++);
      }
    }
  }
}
