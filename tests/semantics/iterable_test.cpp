// SPDX-License-Identifier: Apache-2.0
// Iterable data sets: each worker iterates a shard of its own, inline the whole.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "semantics/shards.hpp"

using namespace feedlane::test;
using namespace feedlane::test::shards;

// promise: shard-per-worker, shard-exhausted, torch-small-shards
TEST_CASE("shards of 0, 4 and 20 samples come round-robin with any prefetch, and each sample once out of order") {
  for (const std::int32_t prefetch : {2, 3, 4})
    for (const std::int32_t out_of_order : {0, 1}) {
      CAPTURE(prefetch);
      CAPTURE(out_of_order);
      Iterable s({0, 4, 20}, 3);
      s.config.prefetch_factor = prefetch;
      s.config.out_of_order = out_of_order;
      s.config.keep_workers = 1;
      const Loader l = s.create();
      for (std::int64_t epoch = 0; epoch < 3; epoch++) {
        const std::vector<Taken> taken = take_epoch(l.get(), epoch);
        CHECK(sorted(values_of(taken)) == all_of(s.shards.lengths));
        if (out_of_order == 0) check_batches(taken, by_turns(s.shards.lengths, 3));
        for (const Taken& t : taken) {
          CHECK(t.indices.empty());
          CHECK(t.value("value") / 1000 == t.worker);
        }
      }
      CHECK(stats_of(l.get()).samples == 72);
    }
}

// promise: loader-iterable-callbacks
TEST_CASE("without workers every epoch iterates the whole iterable data set") {
  for (const std::int64_t batch_size : {std::int64_t{1}, std::int64_t{3}, std::int64_t{24}, std::int64_t{100}}) {
    CAPTURE(batch_size);
    Iterable s({24}, batch_size, true);
    const Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 3; epoch++) {
      const std::vector<Taken> taken = take_epoch(l.get(), epoch);
      check_batches(taken, by_turns({24}, batch_size));
      CHECK(taken[0].worker == -1);
    }
  }
}

// promise: seed-per-sample
TEST_CASE("each row of a shard has its number within the shard as index, and a seed derived from that number") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s({10, 7}, 4, without_workers);
    const Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 2; epoch++)
      for (const Taken& t : take_epoch(l.get(), epoch))
        for (std::size_t row = 0; row < t.count; row++) {
          CHECK(t.value("index", row) == t.value("value", row) % 1000);
          const auto shard = static_cast<std::uint64_t>(t.value("value", row) / 1000);
          CHECK(t.seed(row) == feedlane_row_seed(99 + shard, epoch, t.value("index", row)));
        }
  }
}

// promise: shard-order
TEST_CASE("with ordered delivery, next() waits for a slow shard, so the order of batches doesn't depend on timing") {
  Iterable s({9, 9}, 3);
  const Gate gate;
  s.shards.gate_fd = gate.fd();
  s.shards.waits = true;
  const Loader l = s.create();
  begin(l.get(), 0);
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    return worker_of(l.get(), 1).tasks == 2;
  }));
  CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
  gate.open();
  check_batches(take_rest(l.get()), by_turns({9, 9}, 3));
}

// promise: shard-order
TEST_CASE("out of order, a slow shard delays no other shard") {
  Iterable s({3, 6}, 3);
  const Gate gate;
  s.shards.gate_fd = gate.fd();
  s.shards.waits = true;
  s.config.out_of_order = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  CHECK(take(l.get()).value("value") == 1000);
  CHECK(take(l.get()).value("value") == 1003);
  gate.open();
  CHECK(take(l.get()).value("value") == 0);
  CHECK(take(l.get()).status == FEEDLANE_END);
}

// promise: loader-iterable-drop-last
TEST_CASE("drop_last of iterable data sets applies to each worker") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s(without_workers ? Numbers{10} : Numbers{0, 4, 20, 6}, 3, without_workers);
    s.config.drop_last = 1;
    const Loader l = s.create();
    const Numbers whole = without_workers ? Numbers{9} : Numbers{0, 3, 18, 6};
    for (std::int64_t epoch = 0; epoch < 2; epoch++) check_batches(take_epoch(l.get(), epoch), by_turns(whole, 3));
  }
}

// promise: loader-iterable-drop-last
TEST_CASE("drop_last drops an incomplete last batch even if a sample of it was skipped or retried") {
  for (const bool without_workers : {false, true})
    for (const Shards::Trouble trouble : {Shards::broken, Shards::broken_once}) {
      CAPTURE(without_workers);
      CAPTURE(static_cast<int>(trouble));
      Iterable s({8}, 3, without_workers);
      s.shards.trouble = trouble;
      s.shards.trouble_at = 7;
      s.config.drop_last = 1;
      s.config.retries = 1;
      s.config.retry_backoff_ns = 1;
      s.config.skip_budget = 1;
      const Loader l = s.create();
      check_batches(take_epoch(l.get(), 0), by_turns({6}, 3));
      CHECK(stats_of(l.get()).retried == (trouble == Shards::broken ? 0 : 1));
      CHECK(stats_of(l.get()).skipped == (trouble == Shards::broken ? 1 : 0));
      CHECK(stats_of(l.get()).restarts == 0);
    }
}

// promise: shard-restart
TEST_CASE("kept workers restart an iterable data set each epoch, or reopen a data set without a restart callback") {
  for (const bool has_restart : {true, false}) {
    CAPTURE(has_restart);
    Iterable s({5, 7}, 2);
    const Reports reports;
    s.shards.report_fd = reports.fd();
    s.config.keep_workers = 1;
    if (!has_restart) s.dataset.restart = nullptr;
    Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 3; epoch++)
      check_batches(take_epoch(l.get(), epoch), by_turns(s.shards.lengths, 2));
    l.reset();
    int opened = 0;
    int closed = 0;
    for (const Report& r : reports.drain()) {
      opened += r.what == Report::opened ? 1 : 0;
      closed += r.what == Report::closed ? 1 : 0;
      if (r.what == Report::opened) CHECK_MESSAGE(r.attempt == 1, "info says that it is iterable");
    }
    CHECK(opened == (has_restart ? 2 : 6));
    CHECK(closed == opened);
  }
}

// promise: end-abandoned-epoch
TEST_CASE("after an abandoned epoch every shard starts from its beginning, with kept workers and with new workers") {
  for (const std::int32_t keep : {0, 1}) {
    CAPTURE(keep);
    Iterable s({0, 9, 30}, 2);
    s.config.keep_workers = keep;
    const Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 8; epoch++) {
      begin(l.get(), epoch);
      for (std::int64_t i = 0; i < epoch; i++) CHECK(take(l.get()).batch == i);
    }
    check_batches(take_epoch(l.get(), 8), by_turns(s.shards.lengths, 2));
    if (keep == 1) CHECK(stats_of(l.get()).restarts == 0);
  }
  CHECK_FALSE(has_children());
}

// promise: shard-declared-length
TEST_CASE("the loader's length is derived from iterable_length, and more samples than declared cause only a warning") {
  for (const bool without_workers : {false, true})
    for (const std::int64_t declared : {std::int64_t{0}, std::int64_t{7}, std::int64_t{24}, std::int64_t{100}}) {
      CAPTURE(without_workers);
      CAPTURE(declared);
      const Numbers lengths = without_workers ? Numbers{24} : Numbers{4, 20};
      Iterable s(lengths, 3, without_workers);
      s.config.iterable_length = declared;
      const Loader l = s.create();
      std::int64_t length = 0;
      REQUIRE(length_of(l.get(), &length) == FEEDLANE_OK);
      CHECK(length == (declared == 0 ? -1 : (declared + 2) / 3));
      (void)events_of(l.get());
      for (std::int64_t epoch = 0; epoch < 2; epoch++) {
        check_batches(take_epoch(l.get(), epoch), by_turns(lengths, 3));
        const std::vector<feedlane_event> warnings = events_of(l.get(), FEEDLANE_EVENT_WARNING);
        REQUIRE(warnings.size() == (declared == 7 ? 1 : 0));
        if (declared != 7) continue;
        CHECK(std::string(warnings[0].what.argument) == "config.iterable_length");
        CHECK(warnings[0].what.needed == 7);
        CHECK(warnings[0].what.found > 7);
      }
    }
}

// promise: loader-iterable-callbacks
TEST_CASE("an iterable data set may make whole batches of any number of rows") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s({10, 9}, 4, without_workers);
    s.fetching({3, 4, 1});
    const Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 2; epoch++) {
      const std::vector<Taken> taken = take_epoch(l.get(), epoch);
      std::vector<Numbers> expected{{0, 1, 2}, {3, 4, 5, 6}, {7}, {8, 9}};
      if (!without_workers)
        expected = {{0, 1, 2}, {1000, 1001, 1002}, {3, 4, 5, 6}, {1003, 1004, 1005, 1006}, {7}, {1007}, {8, 9}, {1008}};
      check_batches(taken, expected);
    }
  }
}

// promise: loader-unbatched
TEST_CASE("an unbatched iterable data set yields one sample per task") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s(without_workers ? Numbers{5} : Numbers{2, 5}, FEEDLANE_UNBATCHED, without_workers);
    const Loader l = s.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    check_batches(taken, by_turns(s.shards.lengths, 1));
    for (const Taken& t : taken) CHECK(t.shapes[0].empty());
  }
}

// promise: shard-exhausted
TEST_CASE("a foreign event loop takes every shard to its end, and is woken from each sleep") {
  Iterable s({0, 4, 20, 0, 1}, 3);
  s.config.keep_workers = 1;
  const Loader l = s.create();
  int fd = -1;
  REQUIRE(wait_fd_of(l.get(), &fd) == FEEDLANE_OK);
  for (std::int64_t epoch = 0; epoch < 20; epoch++) {
    begin(l.get(), epoch);
    std::vector<Taken> taken;
    for (bool ended = false; !ended;) {
      if (feedlane_loader_arm(l.get(), nullptr) == FEEDLANE_OK) REQUIRE_MESSAGE(wait_readable(fd), "asleep for ever");
      if (feedlane_loader_poll(l.get(), nullptr) != FEEDLANE_AGAIN) continue;
      taken.push_back(take(l.get(), nullptr, 0));
      ended = taken.back().status == FEEDLANE_END;
      if (ended || taken.back().status == FEEDLANE_TIMEOUT) taken.pop_back();
    }
    check_batches(taken, by_turns(s.shards.lengths, 3));
  }
}

// promise: shard-end-frees-slot
TEST_CASE("a foreign event loop that holds a batch doesn't sleep when the end of a shard frees a slot") {
  Iterable s({6, 0, 0}, 3);
  s.config.arena_bytes = 2 * 4096;
  const Loader l = s.create();
  int fd = -1;
  REQUIRE(wait_fd_of(l.get(), &fd) == FEEDLANE_OK);
  begin(l.get(), 0);
  // Both slots are in use; the second one's task ends its shard.
  REQUIRE(eventually([&] {
    return worker_of(l.get(), 0).tasks == 1 && worker_of(l.get(), 1).tasks == 1 &&
           feedlane_loader_poll(l.get(), nullptr) == FEEDLANE_AGAIN;
  }));
  auto first = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &first, nullptr) == FEEDLANE_OK);
  auto second = fresh<feedlane_batch>();
  std::int32_t status = FEEDLANE_TIMEOUT;
  while (status == FEEDLANE_TIMEOUT) {
    if (feedlane_loader_arm(l.get(), nullptr) == FEEDLANE_OK) REQUIRE_MESSAGE(wait_readable(fd), "asleep for ever");
    if (feedlane_loader_poll(l.get(), nullptr) == FEEDLANE_AGAIN)
      status = feedlane_loader_next(l.get(), 0, &second, nullptr);
  }
  CHECK(status == FEEDLANE_OK);
  for (const feedlane_batch* b : {&first, &second}) CHECK(feedlane_batch_release(l.get(), b->token) == FEEDLANE_OK);
  CHECK(take_rest(l.get()).empty());
}

namespace {

// A shard of 10 samples by hand: rows of three, what it saves is its position; sample 4 is left out.
void work_by_hand(feedlane_loader* l) {
  feedlane_worker* handle = nullptr;
  if (feedlane_worker_attach(-1, l, FEEDLANE_FOREVER, &handle, nullptr) != FEEDLANE_OK) return;
  const Worker worker(handle);
  auto info = fresh<feedlane_worker_info>();
  (void)feedlane_worker_get_info(handle, &info);
  (void)feedlane_worker_ready(handle, 0, nullptr, nullptr);
  std::int64_t position = 0;
  const feedlane_task* task = nullptr;
  while (feedlane_worker_next(handle, FEEDLANE_FOREVER, &task, nullptr) == FEEDLANE_OK) {
    if (task->first != 0) position = 0;
    if (position == 10) {
      (void)feedlane_task_commit(task, FEEDLANE_EXHAUSTED, nullptr);
      continue;
    }
    std::uint64_t rows = 0;
    for (std::uint64_t taken = 0; rows < task->count && position < 10; position++, taken++)
      if (position == 4) (void)fail_sample(task, taken, "by hand");
      else static_cast<std::int64_t*>(task->tensors[0].data)[rows++] = info.id * 1000 + position;
    (void)feedlane_task_store(task, FEEDLANE_STORE_STATE, &position, sizeof position, nullptr);
    (void)feedlane_task_commit(task, rows, nullptr);
  }
}

}  // namespace

// promise: start-threads
TEST_CASE("workers of the pull form report their skipped samples and the end of their shard") {
  Setup s(0, 3);
  s.config.workers = 2;
  s.config.start = FEEDLANE_START_THREAD;
  s.config.iterable = 1;
  s.config.skip_budget = 2;
  s.fields({field("value", int64_type)});
  Loader l = s.create();
  std::thread first(work_by_hand, l.get());
  std::thread second(work_by_hand, l.get());
  for (std::int64_t epoch = 0; epoch < 3; epoch++) {
    const std::vector<Taken> taken = take_epoch(l.get(), epoch);
    check_batches(taken, {{0, 1, 2}, {1000, 1001, 1002}, {3, 5, 6}, {1003, 1005, 1006}, {7, 8, 9}, {1007, 1008, 1009}});
    const std::vector<feedlane_event> told = events_of(l.get(), FEEDLANE_EVENT_SAMPLE_SKIPPED);
    REQUIRE(told.size() == 2);
    for (const feedlane_event& e : told) CHECK(e.what.sample == 4);
  }
  l.reset();
  first.join();
  second.join();
}

// promise: shard-pull-failure
TEST_CASE("when a pull-form worker fails a task, the samples up to the failed one count as taken from the shard") {
  Setup s(0, 4);
  s.config.workers = 1;
  s.config.start = FEEDLANE_START_THREAD;
  s.config.prefetch_factor = 1;
  s.config.iterable = 1;
  s.config.deterministic = 1;
  s.fields({field("value", int64_type)});
  const Loader l = s.create();
  begin(l.get(), 0);
  const feedlane_task* task = nullptr;
  const auto join = [&] {
    feedlane_worker* w = nullptr;
    REQUIRE(feedlane_worker_attach(-1, l.get(), FEEDLANE_FOREVER, &w, nullptr) == FEEDLANE_OK);
    REQUIRE(feedlane_worker_ready(w, 0, nullptr, nullptr) == FEEDLANE_OK);
    (void)feedlane_loader_poll(l.get(), nullptr);
    return Worker(w);
  };
  // Fails a task at `position`; which sample the trainer is told of.
  const auto fail = [&](const Worker& w, std::int64_t position) {
    REQUIRE(feedlane_worker_next(w.get(), 0, &task, nullptr) == FEEDLANE_OK);
    REQUIRE(feedlane_task_fail(task, position, 0, "torn", nullptr, nullptr) == FEEDLANE_OK);
    Error e;
    CHECK(take(l.get(), &e).status == FEEDLANE_E_SAMPLE);
    return e.sample;
  };
  Worker w = join();
  CHECK(fail(w, 2) == 2);
  CHECK(fail(w, -1) == -1);
  CHECK(fail(w, 1) == 4);
  w.reset();
  (void)feedlane_loader_poll(l.get(), nullptr);
  w = join();
  REQUIRE(feedlane_worker_next(w.get(), 0, &task, nullptr) == FEEDLANE_OK);
  CHECK(task->delivered == 5);
  CHECK(feedlane_task_commit(task, FEEDLANE_EXHAUSTED, nullptr) == FEEDLANE_OK);
}

// promise: fault-failing-shard-reason
TEST_CASE("a shard without a saved state after a failed batch is lost with its worker, and the error has the reason") {
  for (const bool saves_again : {false, true}) {
    CAPTURE(saves_again);
    Setup s(0, 4);
    s.config.workers = 1;
    s.config.start = FEEDLANE_START_THREAD;
    s.config.prefetch_factor = 1;
    s.config.iterable = 1;
    s.fields({field("value", int64_type)});
    const Loader l = s.create();
    begin(l.get(), 0);
    const feedlane_task* task = nullptr;
    const auto join = [&] {
      feedlane_worker* w = nullptr;
      REQUIRE(feedlane_worker_attach(-1, l.get(), FEEDLANE_FOREVER, &w, nullptr) == FEEDLANE_OK);
      REQUIRE(feedlane_worker_ready(w, 0, nullptr, nullptr) == FEEDLANE_OK);
      (void)feedlane_loader_poll(l.get(), nullptr);
      return Worker(w);
    };
    const auto make = [&](const Worker& w) {
      REQUIRE(feedlane_worker_next(w.get(), 0, &task, nullptr) == FEEDLANE_OK);
      REQUIRE(feedlane_task_store(task, FEEDLANE_STORE_STATE, "x", 1, nullptr) == FEEDLANE_OK);
      REQUIRE(feedlane_task_commit(task, 4, nullptr) == FEEDLANE_OK);
      CHECK(take(l.get()).status == FEEDLANE_OK);
    };
    Worker w = join();
    make(w);
    REQUIRE(feedlane_worker_next(w.get(), 0, &task, nullptr) == FEEDLANE_OK);
    REQUIRE(feedlane_task_fail(task, 1, 0, "torn", nullptr, nullptr) == FEEDLANE_OK);
    CHECK(take(l.get()).status == FEEDLANE_E_SAMPLE);
    if (saves_again) make(w);
    w.reset();
    (void)feedlane_loader_poll(l.get(), nullptr);
    if (saves_again) {
      w = join();
      REQUIRE(feedlane_worker_next(w.get(), 0, &task, nullptr) == FEEDLANE_OK);
      CHECK(task->state_bytes == 1);
      CHECK(feedlane_task_commit(task, FEEDLANE_EXHAUSTED, nullptr) == FEEDLANE_OK);
    } else {
      Error e;
      CHECK(take(l.get(), &e).status == FEEDLANE_E_PEER_DEAD);
      CHECK(e.says("its last batch failed"));
      CHECK(e.says("after 6 samples"));
    }
    CHECK(take(l.get()).status == FEEDLANE_END);
  }
}

// promise: inline-timeout
TEST_CASE("without workers next checks its timeout between the samples of a shard, and no sample is lost") {
  Iterable s({11}, 4, true);
  const Loader l = s.create();
  for (std::int64_t epoch = 0; epoch < 2; epoch++) {
    begin(l.get(), epoch);
    std::vector<Taken> taken;
    int timeouts = 0;
    for (;;) {
      Taken t = take(l.get(), nullptr, 0);
      if (t.status == FEEDLANE_END) break;
      if (t.status == FEEDLANE_TIMEOUT) timeouts++;
      else taken.push_back(std::move(t));
      REQUIRE(timeouts < 100);
    }
    CHECK(timeouts == 9);  // after each sample but the last of its batch; the shard's end is no sample
    check_batches(taken, by_turns({11}, 4));
    begin(l.get(), 7);  // given up in the middle of a batch
    CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
  }
}
