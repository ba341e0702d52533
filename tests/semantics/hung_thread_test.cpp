// SPDX-License-Identifier: Apache-2.0
// A thread that doesn't leave: nothing can end it, so what it has in hand stays its own, and the trainer is told.
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// This thread is the worker too, in the pull form, with one of two tasks in hand.
struct Hung {
  explicit Hung(std::int64_t task_timeout_ns = 0) {
    setup.config.task_timeout_ns = task_timeout_ns;
    setup.external(1).config.start = FEEDLANE_START_THREAD;
    setup.config.stop_timeout_ns = setup.config.term_timeout_ns = 20'000'000;
    loader = setup.create();
    join();
    begin(loader.get(), 0);
    REQUIRE(eventually([this] {
      (void)feedlane_loader_poll(loader.get(), nullptr);
      return feedlane_worker_next(worker.get(), 0, &task, nullptr) == FEEDLANE_OK;
    }));
  }
  void join() {
    feedlane_worker* made = nullptr;
    REQUIRE(feedlane_worker_attach(-1, loader.get(), FEEDLANE_FOREVER, &made, nullptr) == FEEDLANE_OK);
    worker.reset(made);
    REQUIRE(feedlane_worker_ready(made, 0, nullptr, nullptr) == FEEDLANE_OK);
  }
  // Makes the rest of this epoch, from this batch on.
  void serve(std::int64_t epoch, std::int64_t first) {
    for (std::int64_t batch = first; batch < 4; batch++) {
      REQUIRE(eventually([this] {
        (void)feedlane_loader_poll(loader.get(), nullptr);
        return feedlane_worker_next(worker.get(), 0, &task, nullptr) == FEEDLANE_OK;
      }));
      CHECK(task->epoch == epoch);
      CHECK(feedlane_task_commit(task, 1, nullptr) == FEEDLANE_OK);
      CHECK(take(loader.get()).batch == batch);
    }
  }
  // Writes all of its task, as if nothing had happened.
  void write_on() const {
    for (std::int32_t t = 0; t < task->tensor_count; t++) std::memset(task->tensors[t].data, 7, task->tensors[t].bytes);
    CHECK(feedlane_worker_check(worker.get()) == FEEDLANE_END);
    CHECK(feedlane_task_commit(task, task->count, nullptr) == FEEDLANE_OK);
    const feedlane_task* none = nullptr;
    CHECK(feedlane_worker_next(worker.get(), FEEDLANE_FOREVER, &none, nullptr) == FEEDLANE_END);
  }

  Setup setup{4, 1};
  Loader loader;
  Worker worker;
  const feedlane_task* task = nullptr;
};

}  // namespace

// promise: start-threads, end-thread-stays, thread-does-not-leave
TEST_CASE("stop returns E_HUNG for a thread that doesn't leave, and the thread's slots stay reserved") {
  Hung h;
  Error e;
  const auto before = std::chrono::steady_clock::now();
  CHECK(feedlane_loader_stop(h.loader.get(), &e) == FEEDLANE_E_HUNG);
  CHECK_MESSAGE(std::chrono::steady_clock::now() - before < std::chrono::seconds(5), "a thread can't be killed");
  CHECK(e.worker == 0);
  CHECK(e.says("thread"));
  CHECK_MESSAGE(stats_of(h.loader.get()).slots_free == stats_of(h.loader.get()).slots - 2, "the window of two");
  CHECK_MESSAGE(feedlane_loader_begin(h.loader.get(), 1, &e) == FEEDLANE_E_HUNG, "not before it has gone");
  h.write_on();
  h.worker.reset();
  CHECK(feedlane_loader_stop(h.loader.get(), &e) == FEEDLANE_OK);
  CHECK(stats_of(h.loader.get()).slots_free == stats_of(h.loader.get()).slots);
  begin(h.loader.get(), 2);
  h.join();
  h.serve(2, 0);
  h.worker.reset();
}

// promise: start-threads, end-thread-stays
TEST_CASE("a loader destroyed before a thread has left keeps its memory until that thread detaches") {
  Hung h;
  feedlane_loader* handle = h.loader.release();
  CHECK(feedlane_loader_destroy(&handle) == FEEDLANE_E_HUNG);
  CHECK(handle == nullptr);
  h.write_on();
  CHECK(mappings_of("feedlane-") == 2);
  h.worker.reset();
  CHECK(mappings_of("feedlane-") == 0);
}

// promise: start-threads
TEST_CASE("next returns E_HUNG while all threads hang, and the epoch continues when one thread answers") {
  Hung h(100'000'000);
  Error e;
  CHECK(take(h.loader.get(), &e).status == FEEDLANE_E_HUNG);
  CHECK(e.says("every worker thread (1) hangs"));
  CHECK(feedlane_task_commit(h.task, 1, nullptr) == FEEDLANE_OK);  // which comes too late
  h.serve(0, 0);
  CHECK(stats_of(h.loader.get()).late_results == 1);
  h.worker.reset();
}

// promise: start-threads
TEST_CASE("a thread that leaves before an epoch has begun frees its place for another thread, also with shards") {
  for (const std::int32_t iterable : {0, 1}) {
    CAPTURE(iterable);
    Setup s(iterable != 0 ? 0 : 4);
    s.external(1).config.start = FEEDLANE_START_THREAD;
    s.config.iterable = iterable;
    const Loader l = s.create();
    for (int i = 0; i < 3; i++) {
      feedlane_worker* made = nullptr;
      REQUIRE(feedlane_worker_attach(-1, l.get(), FEEDLANE_FOREVER, &made, nullptr) == FEEDLANE_OK);
      Worker worker(made);
      REQUIRE(feedlane_worker_ready(made, 0, nullptr, nullptr) == FEEDLANE_OK);
      wait_until_ready(l.get(), 1);
      worker.reset();
      REQUIRE(eventually([&] {
        (void)feedlane_loader_poll(l.get(), nullptr);
        return worker_of(l.get(), 0).generation == i + 1;
      }));
    }
  }
}

// promise: start-threads
TEST_CASE("a thread that opens its data set too late is reported, delays no batch, and is used once it is ready") {
  Setup s(40);
  s.external(2).config.start = FEEDLANE_START_THREAD;
  s.config.start_timeout_ns = s.config.task_timeout_ns = 200'000'000;
  s.connect();
  s.config.dataset = &s.dataset;
  feedlane_loader* made = nullptr;
  REQUIRE(feedlane_loader_create(&s.config, &made, nullptr) == FEEDLANE_OK);
  const Loader l(made);
  feedlane_worker* late = nullptr;
  REQUIRE(feedlane_worker_attach(-1, l.get(), FEEDLANE_FOREVER, &late, nullptr) == FEEDLANE_OK);
  Worker worker(late);
  auto info = fresh<feedlane_worker_info>();
  REQUIRE(feedlane_worker_get_info(late, &info) == FEEDLANE_OK);
  const std::int32_t id = info.id;
  std::thread other([&] { (void)feedlane_worker_run(-1, l.get(), nullptr, nullptr); });
  const std::vector<Taken> taken = take_epoch(l.get(), 0);
  check_sequence(taken, 40, 1);
  for (const Taken& t : taken) CHECK(t.worker != id);
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    return !events_of(l.get(), FEEDLANE_EVENT_WORKER_HUNG).empty();
  }));
  REQUIRE(feedlane_worker_ready(late, 0, nullptr, nullptr) == FEEDLANE_OK);
  wait_until_ready(l.get(), 2);
  CHECK(worker_of(l.get(), id).generation == 0);
  worker.reset();
  REQUIRE(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
  other.join();
}

// promise: start-threads
TEST_CASE("a thread that becomes ready too late, but before the first epoch, keeps its place and its shard") {
  Setup s(0);
  s.external(2).config.start = FEEDLANE_START_THREAD;
  s.config.iterable = 1;
  s.config.start_timeout_ns = s.config.task_timeout_ns = 100'000'000;
  const Loader l = s.create();
  feedlane_worker* made = nullptr;
  REQUIRE(feedlane_worker_attach(-1, l.get(), FEEDLANE_FOREVER, &made, nullptr) == FEEDLANE_OK);
  const Worker late(made);
  REQUIRE(feedlane_worker_attach(-1, l.get(), FEEDLANE_FOREVER, &made, nullptr) == FEEDLANE_OK);
  const Worker other(made);
  REQUIRE(feedlane_worker_ready(other.get(), 0, nullptr, nullptr) == FEEDLANE_OK);
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    return !events_of(l.get(), FEEDLANE_EVENT_WORKER_HUNG).empty();
  }));
  CHECK(feedlane_worker_ready(late.get(), 0, nullptr, nullptr) == FEEDLANE_OK);
  wait_until_ready(l.get(), 2);
}
