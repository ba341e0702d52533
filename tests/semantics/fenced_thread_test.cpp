// SPDX-License-Identifier: Apache-2.0
// 7. Faults: threads that pass their deadline. They can't be ended, and what they have in hand stays with them until they
// answer; whatever else there is to do is done by others, or the trainer hears why it can't be.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr std::int64_t millisecond = 1'000'000;

// Threads that hang in the first attempt at these samples until the gate is open. Iterable: in those of shard 1, where each
// shard has ten.
struct Stuck {
  Gate gate;
  std::set<std::int64_t> at;
  std::atomic<std::size_t> hanging{0};
  bool iterable = false;
};

struct Self {
  Stuck* stuck;
  std::int32_t id;
};

std::int32_t open(void* user_data, const feedlane_worker_info* info, void** self, feedlane_error*) {
  *self = new Self{static_cast<Stuck*>(user_data), info->id};
  return FEEDLANE_OK;
}
void close(void* self) { delete static_cast<Self*>(self); }
std::int32_t restart(void*, std::int64_t, feedlane_error*) { return FEEDLANE_OK; }

std::int32_t make(void* self, const feedlane_row* row, feedlane_error*) {
  const Self& w = *static_cast<Self*>(self);
  Stuck& stuck = *w.stuck;
  if (stuck.iterable && row->index >= 10) return FEEDLANE_END;
  const bool is_mine = stuck.iterable ? w.id == 1 && row->task->epoch == 0 : row->task->attempt == 0;
  if (is_mine && stuck.at.count(row->index) != 0) {
    stuck.hanging++;
    (void)wait_readable(stuck.gate.fd());
  }
  const std::int64_t value = stuck.iterable ? w.id * 100 + row->index : row->index;
  std::memcpy(row->fields[0], &value, sizeof value);
  return FEEDLANE_OK;
}

// A loader and its threads, which end before it.
struct Threads {
  Threads(Stuck& stuck, std::int64_t samples, std::int32_t workers, std::int32_t dispatch = 0)
      : setup(samples), stuck_(stuck) {
    setup.external(workers).config.start = FEEDLANE_START_THREAD;
    setup.fields({field("index", int64_type)});
    setup.config.task_timeout_ns = 500 * millisecond;
    setup.config.dispatch = dispatch;
    setup.config.keep_workers = 1;
    if (stuck.iterable) {
      setup.config.sampler = nullptr;
      setup.config.iterable = 1;
    }
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() {
    stuck_.gate.open();
    loader.reset();
    for (std::thread& t : threads) t.join();
  }
  feedlane_loader* start() {
    auto table = fresh<feedlane_dataset>();
    table.user_data = &stuck_;
    table.open = open;
    table.close = close;
    (stuck_.iterable ? table.next : table.get) = make;
    if (stuck_.iterable) table.restart = restart;
    setup.connect();
    if (stuck_.iterable) setup.config.sampler = nullptr;
    setup.config.dataset = &table;
    feedlane_loader* made = nullptr;
    auto err = fresh<feedlane_error>();
    REQUIRE_MESSAGE(feedlane_loader_create(&setup.config, &made, &err) == FEEDLANE_OK, err.text);
    loader.reset(made);
    for (std::int32_t i = 0; i < setup.config.workers; i++)
      threads.emplace_back([made] { (void)feedlane_worker_run(-1, made, nullptr, nullptr); });
    wait_until_ready(made, setup.config.workers);
    begin(made, 0);
    return made;
  }
  Setup setup;
  Loader loader{nullptr};
  std::vector<std::thread> threads;

 private:
  Stuck& stuck_;
};

}  // namespace

// promise: fault-hung-thread, thread-round-robin
TEST_CASE("the batches of a hung thread go to other threads, also with round-robin dispatch") {
  for (const std::int32_t dispatch : {FEEDLANE_DISPATCH_LEAST_LOADED, FEEDLANE_DISPATCH_ROUND_ROBIN}) {
    CAPTURE(dispatch);
    Stuck stuck;
    stuck.at = {2};
    Threads t(stuck, 40, 2, dispatch);
    feedlane_loader* l = t.start();
    check_sequence(take_rest(l), 40, 1);
    CHECK(stats_of(l).hung >= 1);
  }
}

// promise: fault-hung-thread
TEST_CASE("while two of three threads hang, the third makes all batches, and each hung thread is reported once") {
  Stuck stuck;
  stuck.at = {10, 11};
  Threads t(stuck, 40, 3);
  feedlane_loader* l = t.start();
  std::uint64_t last = 0;
  for (std::int64_t i = 0; i < 40; i++) {
    auto batch = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(l, patience_ns, &batch, nullptr) == FEEDLANE_OK);
    CHECK(batch.indices[0] == i);
    if (last != 0) CHECK(feedlane_batch_release(l, last) == FEEDLANE_OK);
    last = batch.token;
  }
  CHECK(take(l).status == FEEDLANE_END);
  std::set<std::int32_t> named;
  for (const feedlane_event& e : events_of(l, FEEDLANE_EVENT_WORKER_HUNG)) CHECK(named.insert(e.what.worker).second);
  CHECK(named.size() >= 2);
  CHECK(feedlane_batch_release(l, last) == FEEDLANE_OK);
}

// promise: fault-hung-thread
TEST_CASE("next returns SLOTS_HELD if hung threads and more held batches than declared leave no slot") {
  Stuck stuck;
  stuck.at = {4};
  Threads t(stuck, 20, 2);  // 4 in the window, 1 held, 1 between, 2 that may hang
  feedlane_loader* l = t.start();
  std::vector<std::uint64_t> kept;
  for (std::int64_t i = 0; i < 4; i++) {
    auto batch = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(l, patience_ns, &batch, nullptr) == FEEDLANE_OK);
    kept.push_back(batch.token);
  }
  const Taken held = take(l);
  CHECK(held.status == FEEDLANE_SLOTS_HELD);
  for (const std::uint64_t token : kept) CHECK(feedlane_batch_release(l, token) == FEEDLANE_OK);
  const std::vector<Taken> rest = take_rest(l);
  REQUIRE(rest.size() == 16);
  for (std::size_t i = 0; i < rest.size(); i++) CHECK(rest[i].indices[0] == static_cast<std::int64_t>(i) + 4);
}

// promise: fault-hung-thread, thread-all
TEST_CASE("next returns E_HUNG while all threads hang, and the epoch continues when a thread returns") {
  Stuck stuck;
  stuck.at = {3, 4};
  Threads t(stuck, 12, 2);
  feedlane_loader* l = t.start();
  std::vector<Taken> all;
  for (int i = 0; i < 3; i++) all.push_back(take(l));
  for (int i = 0; i < 3; i++) {
    Error e;
    CHECK(take(l, &e).status == FEEDLANE_E_HUNG);
    CHECK(std::string(e.argument) == "config.task_timeout_ns");
  }
  stuck.gate.open();
  REQUIRE(eventually([&] { return feedlane_loader_poll(l, nullptr) == FEEDLANE_AGAIN; }));
  Taken next = take(l);
  for (; next.status == FEEDLANE_E_HUNG; next = take(l)) std::this_thread::yield();
  all.push_back(std::move(next));
  for (Taken& rest : take_rest(l)) all.push_back(std::move(rest));
  check_sequence(all, 12, 1);
}

// promise: fault-hung-thread, thread-shard
TEST_CASE("a hung thread loses the rest of its shard but no earlier sample, and next reports the loss with E_HUNG") {
  for (const bool comes_back : {false, true}) {
    CAPTURE(comes_back);
    Stuck stuck;
    stuck.iterable = true;
    stuck.at = {5};
    Threads t(stuck, 0, 2);
    feedlane_loader* l = t.start();
    std::vector<std::int64_t> of_shard;
    int told = 0;
    std::uint64_t last = 0;
    for (std::int64_t epoch = 0; epoch < 2; epoch++) {
      if (epoch != 0) begin(l, epoch);
      of_shard.clear();
      std::size_t others = 0;
      int hung = 0;
      for (;;) {
        auto batch = fresh<feedlane_batch>();
        auto err = fresh<feedlane_error>();
        const std::int32_t s = feedlane_loader_next(l, patience_ns, &batch, &err);
        if (s == FEEDLANE_E_HUNG) {
          hung++;
          if (comes_back) stuck.gate.open();
          continue;
        }
        if (s == FEEDLANE_END) break;
        REQUIRE_MESSAGE(s == FEEDLANE_OK, err.text);
        std::int64_t value = 0;
        std::memcpy(&value, batch.tensors[0].data, sizeof value);
        if (value >= 100) of_shard.push_back(value - 100);
        else others++;
        if (last != 0) CHECK(feedlane_batch_release(l, last) == FEEDLANE_OK);
        last = batch.token;
      }
      CHECK(others == 10);
      for (std::size_t i = 0; i < of_shard.size(); i++) CHECK(of_shard[i] == static_cast<std::int64_t>(i));
      told += hung;
      if (epoch == 0) CHECK(hung >= 1);
      else CHECK(of_shard.size() == (hung == 0 ? 10 : 0));
    }
    CHECK_MESSAGE(told >= (comes_back ? 1 : 2), "a thread that still hangs has no shard in the next epoch");
    CHECK(feedlane_batch_release(l, last) == FEEDLANE_OK);
  }
}
