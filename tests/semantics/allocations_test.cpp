// SPDX-License-Identifier: Apache-2.0
// Memory that is too short in any call: each says E_MEMORY or does without, loses and leaks nothing, and succeeds when it is
// called again. What `next` says of it is in memory_test.cpp, calls of a sampler are in allocations_samplers_test.cpp.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "semantics/every_allocation.hpp"
#include "support/allocation.hpp"
#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// ---- loaders ----

void take_all(feedlane_loader* l, std::int64_t from, std::int64_t batches) {
  auto batch = fresh<feedlane_batch>();
  for (std::int64_t i = from; i < batches; i++) {
    REQUIRE(call([&] { return feedlane_loader_next(l, patience_ns, &batch, nullptr); }) == FEEDLANE_OK);
    CHECK(batch.batch == i);
    REQUIRE(feedlane_batch_release(l, batch.token) == FEEDLANE_OK);
  }
  REQUIRE(call([&] { return feedlane_loader_next(l, patience_ns, &batch, nullptr); }) == FEEDLANE_END);
}

// Allocates nothing itself: inline it runs in the calls that are short of memory.
feedlane_dataset plain_dataset() {
  auto table = fresh<feedlane_dataset>();
  table.get = [](void*, const feedlane_row* row, feedlane_error*) -> std::int32_t {
    std::memcpy(row->fields[0], &row->index, sizeof row->index);
    return FEEDLANE_OK;
  };
  return table;
}

// Created, begun, saved in the middle, begun again, stopped, destroyed; and another one goes on from the state.
void live_as_loader(std::int32_t workers) {
  constexpr std::int64_t batches = 6;
  Setup s(2 * batches, 2);
  s.forked(workers, plain_dataset()).fields({field("index", int64_type)});
  s.connect();
  feedlane_loader* l = nullptr;
  SUCCEEDS(feedlane_loader_create(&s.config, &l, nullptr));
  SUCCEEDS(feedlane_loader_begin(l, 0, nullptr));
  auto batch = fresh<feedlane_batch>();
  SUCCEEDS(feedlane_loader_next(l, patience_ns, &batch, nullptr));
  REQUIRE(feedlane_batch_release(l, batch.token) == FEEDLANE_OK);
  std::vector<char> state(4096);
  std::uint64_t bytes = 0;
  SUCCEEDS(feedlane_loader_state(l, 0, state.data(), state.size(), &bytes, nullptr));
  auto info = fresh<feedlane_state_info>();
  SUCCEEDS(feedlane_state_read(state.data(), bytes, &info, nullptr));
  CHECK(call([&] { return feedlane_loader_poll(l, nullptr); }) >= 0);
  SUCCEEDS(feedlane_loader_begin(l, 1, nullptr));  // in mid-epoch
  take_all(l, 0, batches);
  SUCCEEDS(feedlane_loader_stop(l, nullptr));
  CHECK(stats_of(l).slots_free == stats_of(l).slots);
  end(feedlane_loader_destroy, &l);
  CHECK_FALSE(has_children());
  if (workers != 0) return;  // forks take long, and there's nothing new for them in a state

  s.config.state = state.data();
  s.config.state_bytes = bytes;
  SUCCEEDS(feedlane_loader_create(&s.config, &l, nullptr));
  SUCCEEDS(feedlane_loader_begin(l, 0, nullptr));
  take_all(l, 1, batches);
  end(feedlane_loader_destroy, &l);
}

// An epoch for two consumers of this process. One leaves in the middle, and another one comes to its place; then the feeder has
// its workers restarted by another epoch.
void live_as_feeder(std::int32_t share) {
  constexpr std::int64_t batches = 8;
  Setup s(2 * batches, 2);
  s.forked(1, plain_dataset()).fields({field("index", int64_type)});
  s.config.share = share;
  s.config.consumers = 2;
  s.connect();
  feedlane_loader* feeder = nullptr;
  SUCCEEDS(feedlane_loader_create(&s.config, &feeder, nullptr));
  const auto join = [&] {
    std::int32_t id = -1, fd = -1;
    feedlane_loader* l = nullptr;
    SUCCEEDS(feedlane_loader_open_consumer(feeder, nullptr, &id, &fd, nullptr));
    REQUIRE(feedlane_loader_join(fd, nullptr, nullptr, patience_ns, &l, nullptr) == FEEDLANE_OK);
    return Loader(l);
  };
  const auto next = [&](const Loader& l) {
    Taken taken;
    REQUIRE(eventually([&] {
      REQUIRE(call([&] { return feedlane_loader_poll(feeder, nullptr); }) >= 0);
      taken = take(l.get(), nullptr, 0);
      return taken.status != FEEDLANE_TIMEOUT;
    }));
    return taken;
  };
  const std::int64_t step = share == FEEDLANE_SHARE_DEAL ? 2 : 1;
  Loader one = join();
  const Loader other = join();
  for (std::int64_t epoch = 0; epoch < 2; epoch++) {
    SUCCEEDS(feedlane_loader_begin(feeder, epoch, nullptr));
    REQUIRE(feedlane_loader_begin(one.get(), epoch, nullptr) == FEEDLANE_OK);
    REQUIRE(feedlane_loader_begin(other.get(), epoch, nullptr) == FEEDLANE_OK);
    std::int64_t ones = 0, others = step - 1;
    for (bool is_over = false; !is_over; ones += step, others += step) {
      if (epoch == 0 && ones == 2 * step && step == 2) {
        one.reset();
        one = join();
        REQUIRE(feedlane_loader_begin(one.get(), epoch, nullptr) == FEEDLANE_OK);
      }
      const Taken a = next(one), b = next(other);
      CHECK(a.status == b.status);
      is_over = a.status == FEEDLANE_END;
      if (is_over) CHECK(ones == batches);
      else CHECK((a.batch == ones && b.batch == others));
      REQUIRE((is_over || a.status == FEEDLANE_OK));
    }
  }
  SUCCEEDS(feedlane_loader_stop(feeder, nullptr));
  end(feedlane_loader_destroy, &feeder);
  CHECK_FALSE(has_children());
}

// A worker that is a thread of the trainer: here both are the same thread, one after the other.
void live_as_worker() {
  Setup s(4, 2);
  s.external(1).config.start = FEEDLANE_START_THREAD;
  s.config.slot_bytes = 1 << 16;
  const Loader l = s.create();
  REQUIRE(feedlane_loader_begin(l.get(), 0, nullptr) == FEEDLANE_OK);
  feedlane_worker* w = nullptr;
  std::int32_t attached = FEEDLANE_OK;
  attached = armed([&] { return feedlane_worker_attach(-1, l.get(), FEEDLANE_FOREVER, &w, nullptr); });
  if (attached == FEEDLANE_E_MEMORY) {  // its socket is closed: another one is there when the trainer has heard of it
    CHECK(w == nullptr);
    REQUIRE(feedlane_loader_poll(l.get(), nullptr) >= 0);
    attached = feedlane_worker_attach(-1, l.get(), FEEDLANE_FOREVER, &w, nullptr);
  }
  REQUIRE(attached == FEEDLANE_OK);
  SUCCEEDS(feedlane_worker_ready(w, FEEDLANE_OK, nullptr, nullptr));
  for (int i = 0; i < 2; i++) {
    while (armed([&] { return feedlane_loader_poll(l.get(), nullptr); }) == FEEDLANE_E_MEMORY) continue;
    const feedlane_task* task = nullptr;
    SUCCEEDS(feedlane_worker_next(w, 0, &task, nullptr));
    std::memcpy(task->tensors[0].data, task->indices, 16);
    const feedlane_field extra = field("extra", uint8_type, {100});
    SUCCEEDS(feedlane_task_tensor(task, 2, &extra, nullptr, nullptr));
    SUCCEEDS(feedlane_task_store(task, FEEDLANE_STORE_METADATA, "words", 5, nullptr));
    arm(true);
    void* scratch = feedlane_worker_scratch(w, 1 << 20, 0);
    arm(false);
    if (scratch == nullptr) scratch = feedlane_worker_scratch(w, 1 << 20, 0);
    REQUIRE(scratch != nullptr);
    std::memset(scratch, 1, 1 << 20);
    if (i == 0) SUCCEEDS(feedlane_task_commit(task, 2, nullptr));
    else SUCCEEDS(feedlane_task_fail(task, 0, 0, "a text", "where", nullptr));
  }
  const std::vector<Taken> all = take_outcomes(l.get());
  REQUIRE(all.size() == 2);
  CHECK(all[0].value("index", 1) == 1);
  CHECK(all[0].metadata == "words");
  CHECK(all[1].status == FEEDLANE_E_SAMPLE);
  end(feedlane_worker_destroy, &w);
}

// Two workers that are threads of the trainer, here the same one. The first keeps its batch, so that ever more of the other's are
// yielded ahead of it.
void live_out_of_order() {
  constexpr std::size_t batches = 10, ahead = 4;
  Setup s(batches);
  s.external(2).fields({field("index", int64_type)});
  s.config.start = FEEDLANE_START_THREAD;
  s.config.out_of_order = 1;
  s.config.prefetch_factor = 4;
  const Loader l = s.create();
  REQUIRE(feedlane_loader_begin(l.get(), 0, nullptr) == FEEDLANE_OK);
  feedlane_worker* workers[2] = {};
  for (feedlane_worker*& w : workers) {
    REQUIRE(feedlane_worker_attach(-1, l.get(), FEEDLANE_FOREVER, &w, nullptr) == FEEDLANE_OK);
    REQUIRE(feedlane_worker_ready(w, FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
  }
  REQUIRE(feedlane_loader_poll(l.get(), nullptr) >= 0);
  const feedlane_task* kept = nullptr;
  REQUIRE(feedlane_worker_next(workers[0], 0, &kept, nullptr) == FEEDLANE_OK);
  const std::int64_t last = kept->batch;
  const auto commit = [](const feedlane_task* task) {
    std::memcpy(task->tensors[0].data, task->indices, sizeof(std::int64_t));
    REQUIRE(feedlane_task_commit(task, 1, nullptr) == FEEDLANE_OK);
  };
  std::vector<std::int64_t> came;
  const auto take_one = [&] {
    auto batch = fresh<feedlane_batch>();
    const std::int32_t status = call([&] { return feedlane_loader_next(l.get(), 0, &batch, nullptr); });
    if (status == FEEDLANE_TIMEOUT) return;
    REQUIRE(status == FEEDLANE_OK);
    CHECK(std::count(came.begin(), came.end(), batch.batch) == 0);
    came.push_back(batch.batch);
    REQUIRE(feedlane_batch_release(l.get(), batch.token) == FEEDLANE_OK);
  };
  REQUIRE(eventually([&] {
    if (came.size() == ahead && kept != nullptr) commit(std::exchange(kept, nullptr));
    for (feedlane_worker* const w : workers) {
      const feedlane_task* task = nullptr;
      if (w == workers[0] && kept != nullptr) continue;
      if (feedlane_worker_next(w, 0, &task, nullptr) == FEEDLANE_OK) commit(task);
    }
    take_one();
    return came.size() == batches;
  }));
  CHECK(std::find(came.begin(), came.end(), last) - came.begin() >= static_cast<std::ptrdiff_t>(ahead));
  auto batch = fresh<feedlane_batch>();
  CHECK(call([&] { return feedlane_loader_next(l.get(), patience_ns, &batch, nullptr); }) == FEEDLANE_END);
  for (feedlane_worker*& w : workers) REQUIRE(feedlane_worker_destroy(&w) == FEEDLANE_OK);
}

// Attaches in a process of its own, which has nothing more open or mapped after it failed. Whether the allocation was made.
bool attach_elsewhere(feedlane_loader* l, long nth) {
  std::int32_t id = -1;
  std::int32_t fd = -1;
  REQUIRE(feedlane_loader_open_worker(l, &id, &fd, nullptr) == FEEDLANE_OK);
  const Gate came_to_it;
  Child child({fd, came_to_it.fd()}, [&](Findings& f) {
    const std::int64_t before = live_allocations();
    const std::size_t mappings = mappings_of("feedlane-");
    const std::size_t descriptors = open_descriptors().size();
    fail_allocation(nth);
    feedlane_worker* w = nullptr;
    const std::int32_t s = armed([&] { return feedlane_worker_attach(fd, nullptr, patience_ns, &w, nullptr); });
    if (has_failed()) came_to_it.open();
    EXPECT(f, s == FEEDLANE_OK || (s == FEEDLANE_E_MEMORY && has_failed()));
    EXPECT(f, (s == FEEDLANE_OK) == (w != nullptr));
    const std::int32_t detached = armed([&] { return feedlane_worker_destroy(&w); });
    EXPECT(f, detached == FEEDLANE_OK);
    EXPECT(f, live_allocations() == before);
    EXPECT(f, mappings_of("feedlane-") == mappings);
    EXPECT(f, open_descriptors().size() == descriptors - 1);
  });
  (void)::close(fd);
  CHECK(child.finish() == "");
  return wait_readable(came_to_it.fd(), 0);
}

// ---- rings ----

void live_as_ring(bool by_path, std::uint32_t message_bytes) {
  const std::string path = "/tmp/feedlane-allocations-" + std::to_string(::getpid());
  auto config = fresh<feedlane_ring_config>();
  config.message_bytes = message_bytes;
  config.capacity = 4;
  config.lanes = 2;
  if (by_path) config.path = path.c_str();
  feedlane_rx* rx = nullptr;
  SUCCEEDS(feedlane_rx_create(&config, &rx, nullptr));
  feedlane_tx* tx = nullptr;
  std::int32_t fd = -1;
  SUCCEEDS(feedlane_rx_offer(rx, &fd, nullptr));
  std::int32_t s = armed([&] { return feedlane_tx_attach(fd, nullptr, patience_ns, &tx, nullptr, nullptr); });
  if (s == FEEDLANE_E_MEMORY) {  // the offer is taken in any case
    CHECK(tx == nullptr);
    SUCCEEDS(feedlane_rx_offer(rx, &fd, nullptr));
    s = feedlane_tx_attach(fd, nullptr, patience_ns, &tx, nullptr, nullptr);
  }
  REQUIRE(s == FEEDLANE_OK);
  feedlane_span span;
  SUCCEEDS(feedlane_tx_reserve(tx, 2, 0, &span, nullptr));
  std::memcpy(span.data, "message", 8);
  SUCCEEDS(feedlane_tx_commit(tx, 1, nullptr));
  SUCCEEDS(feedlane_rx_peek(rx, 2, patience_ns, &span, nullptr));
  CHECK(span.count == 1);
  CHECK(std::memcmp(span.data, "message", 8) == 0);
  SUCCEEDS(feedlane_rx_release(rx, span.lane, 1, nullptr));
  std::string messages(std::size_t{2} * message_bytes, 'm'), came(messages.size(), ' ');
  std::uint32_t sent = 0, got = 0, lane = 0;
  SUCCEEDS(feedlane_tx_send(tx, messages.data(), 2, 0, &sent, nullptr));
  SUCCEEDS(feedlane_rx_receive(rx, came.data(), 2, patience_ns, &got, &lane, nullptr));
  CHECK(sent == 2);
  CHECK(got == 2);
  CHECK(came == messages);
  end(feedlane_tx_destroy, &tx);
  CHECK(call([&] { return feedlane_rx_peek(rx, 1, patience_ns, &span, nullptr); }) == FEEDLANE_END);
  end(feedlane_rx_destroy, &rx);
  CHECK(::access(path.c_str(), F_OK) != 0);
}

// ---- monitors ----

void live_as_monitor() {
  Setup s(4, 2);
  const Loader l = s.create();
  feedlane_monitor* m = nullptr;
  SUCCEEDS(feedlane_monitor_open(::getpid(), 0, &m, nullptr));
  auto stats = fresh<feedlane_stats>();
  SUCCEEDS(feedlane_monitor_get_stats(m, &stats));
  CHECK(stats.slots != 0);
  end(feedlane_monitor_destroy, &m);
}

}  // namespace

// promise: memory-in-other-calls, allocation-loader
TEST_CASE("a loader call returns E_MEMORY if one of its allocations fails, and the next call succeeds") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    at_every_allocation([&] { live_as_loader(workers); });
  }
}

// promise: memory-in-other-calls
TEST_CASE("out of order, no batch is lost if an allocation for a batch that is yielded early fails") {
  at_every_allocation(live_out_of_order);
}

// promise: memory-in-other-calls, allocation-feeder
TEST_CASE("a feeder call returns E_MEMORY if one of its allocations fails, and the consumers get every batch once") {
  for (const std::int32_t share : {FEEDLANE_SHARE_EVERY, FEEDLANE_SHARE_DEAL}) {
    CAPTURE(share);
    at_every_allocation([&] { live_as_feeder(share); });
  }
}

// promise: memory-in-other-calls, allocation-worker
TEST_CASE("a worker call returns E_MEMORY if one of its allocations fails, and the next call succeeds") {
  at_every_allocation(live_as_worker);
  Setup s(4);
  s.external(1);
  const Loader l = s.create();
  long nth = 0;
  while (attach_elsewhere(l.get(), nth)) {
    CAPTURE(nth);
    REQUIRE(++nth < 1000);
  }
  CHECK_MESSAGE(nth > 0, "there are some");
  CHECK(feedlane_loader_poll(l.get(), nullptr) >= 0);
  CHECK_MESSAGE(stats_of(l.get()).invalid_results == 0, "a worker that couldn't attach sends no result");
}

// promise: memory-in-other-calls, allocation-ring
TEST_CASE("a ring call returns E_MEMORY if one of its allocations fails, and the next call succeeds") {
  for (const bool by_path : {false, true}) {
    CAPTURE(by_path);
    for (const std::uint32_t message_bytes : {8U, 200U})  // of one line, and of more
      at_every_allocation([&] { live_as_ring(by_path, message_bytes); });
  }
}

// promise: memory-in-other-calls, allocation-monitor
TEST_CASE("a monitor call returns E_MEMORY if one of its allocations fails, and the next call succeeds") {
  at_every_allocation(live_as_monitor);
}
