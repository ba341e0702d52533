// SPDX-License-Identifier: Apache-2.0
// Consumers whose slots are registered: for reading, once, and again after a worker that may have punched holes.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "counting_table.hpp"
#include "device.hpp"
#include "semantics/sharing.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// A feeder with two worker processes that the library starts, and one consumer in the test's own process.
struct Pair {
  explicit Pair(feedlane_pool* pool, std::int64_t samples = 60) : setup(samples, 2) {
    setup.workers(2);
    feeder = sharing::shared(setup, FEEDLANE_SHARE_EVERY, 1).create();
    auto config = fresh<feedlane_consumer_config>();
    config.pinned = pool;
    feedlane_loader* l = nullptr;
    status = feedlane_loader_join(sharing::Place(feeder.get()).release(), nullptr, &config, patience_ns, &l, &error);
    consumer.reset(l);
  }
  void begin_both(std::int64_t epoch = 0) const {
    begin(feeder.get(), epoch);
    begin(consumer.get(), epoch);
    wait_until_ready(feeder.get(), 2);
  }
  void kill_one() const {
    const std::uint64_t before = stats_of(feeder.get()).restarts;
    REQUIRE(::kill(static_cast<pid_t>(worker_of(feeder.get(), 1).pid), SIGKILL) == 0);
    REQUIRE(sharing::poll_until(feeder.get(), [&] { return stats_of(feeder.get()).restarts > before; }));
  }
  [[nodiscard]] std::vector<Taken> take_all() const {
    std::vector<Taken> taken;
    for (;;) {
      const Taken t = sharing::polled(feeder.get(), consumer.get());
      if (t.status != FEEDLANE_OK) {
        CHECK(t.status == FEEDLANE_END);
        return taken;
      }
      taken.push_back(t);
    }
  }
  Setup setup;
  Loader feeder, consumer;
  std::int32_t status = FEEDLANE_OK;
  Error error;
};

}  // namespace

// promise: consumer-pinned, consumer-punched-holes
TEST_CASE("pinned: a consumer registers each slot once for reading, and again after a worker's death") {
  CountingTable table(feedlane::pinned::Access::read_only);
  feedlane_pool* p = table.make_pool();
  {
    const Pair pair(p);
    REQUIRE_MESSAGE(pair.status == FEEDLANE_OK, std::string(pair.error.text));
    const auto slots = static_cast<int>(stats_of(pair.feeder.get()).slots);
    CHECK(table.there == slots);
    pair.begin_both();
    check_sequence(pair.take_all(), 60, 2);
    CHECK(table.most() == 1);
    CHECK(feedlane_pool_destroy(&p) == FEEDLANE_E_STATE);
    pair.begin_both(1);
    pair.kill_one();
    for (std::int64_t batch = 0; batch < 30; batch++) {
      const feedlane_batch b = sharing::polled_batch(pair.feeder.get(), pair.consumer.get());
      CHECK(b.batch == batch);
      CHECK_MESSAGE(table.times_of(b.tensors[0].data) == 2, "batch " << b.batch);
      REQUIRE(feedlane_batch_release(pair.consumer.get(), b.token) == FEEDLANE_OK);
    }
    CHECK(table.there == slots);
  }
  CHECK(table.there == 0);
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

// promise: consumer-punched-holes
TEST_CASE("pinned: a consumer's next fails with E_DEVICE until a slot can be registered again; no batch is lost") {
  CountingTable table(feedlane::pinned::Access::read_only);
  feedlane_pool* p = table.make_pool();
  {
    const Pair pair(p);
    REQUIRE(pair.status == FEEDLANE_OK);
    pair.begin_both();
    table.refuses = true;
    pair.kill_one();
    for (int i = 0; i < 3; i++)
      CHECK(sharing::polled(pair.feeder.get(), pair.consumer.get()).status == FEEDLANE_E_DEVICE);
    table.refuses = false;
    check_sequence(pair.take_all(), 60, 2);
  }
  CHECK(table.there == 0);
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

// promise: consumer-pinned
TEST_CASE("pinned: a backend that can't register for reading is refused when a consumer joins, and nothing remains") {
  CountingTable table(feedlane::pinned::Access::read_only);
  table.table.register_read_only = nullptr;
  feedlane_pool* p = table.make_pool();
  {
    const Pair pair(p);
    CHECK(pair.status == FEEDLANE_E_UNSUPPORTED);
    CHECK(pair.consumer == nullptr);
    REQUIRE(sharing::poll_until(pair.feeder.get(), [&] { return sharing::count_consumers(pair.feeder.get()) == 0; }));
    CHECK(table.there == 0);
  }
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

// promise: consumer-pinned
TEST_CASE("pinned: a stream keeps a consumer's batch, and next waits for it instead of returning SLOTS_HELD") {
  ThreadDevice device;
  const feedlane_pool_config c = device.config();
  feedlane_pool* p = nullptr;
  REQUIRE(feedlane_pool_create(&c, &p, nullptr) == FEEDLANE_OK);
  {
    const Pair pair(p);
    REQUIRE_MESSAGE(pair.status == FEEDLANE_OK, std::string(pair.error.text));
    feedlane_loader* const l = pair.consumer.get();
    pair.begin_both();
    const auto slots = static_cast<std::size_t>(stats_of(pair.feeder.get()).slots);
    device.only_stream().hold();
    for (std::size_t i = 0; i < slots; i++) {
      const feedlane_batch b = sharing::polled_batch(pair.feeder.get(), l);
      REQUIRE(feedlane_batch_release_on(l, b.token, device.stream(), nullptr) == FEEDLANE_OK);
      CHECK(feedlane_batch_release(l, b.token) == FEEDLANE_E_STALE);
    }
    CHECK(stats_of(l).slots_held == slots);
    for (int i = 0; i < 100; i++) {
      (void)feedlane_loader_poll(pair.feeder.get(), nullptr);
      CHECK(take(l, nullptr, 0).status == FEEDLANE_TIMEOUT);
    }
    device.only_stream().go_on();
    const std::vector<Taken> rest = pair.take_all();
    CHECK(rest.size() == 30 - slots);
    CHECK((!rest.empty() && rest[0].batch == static_cast<std::int64_t>(slots)));
    sharing::check_all_returned(pair.feeder.get());
  }
  device.only_stream().wait();
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
  CHECK(device.registered().empty());
}

// promise: consumer-pinned
TEST_CASE("pinned: a stream may use a consumer's batch longer than the program keeps the consumer") {
  ThreadDevice device;
  const feedlane_pool_config c = device.config();
  feedlane_pool* p = nullptr;
  REQUIRE(feedlane_pool_create(&c, &p, nullptr) == FEEDLANE_OK);
  {
    Pair pair(p);
    REQUIRE(pair.status == FEEDLANE_OK);
    pair.begin_both();
    const feedlane_batch b = sharing::polled_batch(pair.feeder.get(), pair.consumer.get());
    device.only_stream().hold();
    REQUIRE(feedlane_batch_release_on(pair.consumer.get(), b.token, device.stream(), nullptr) == FEEDLANE_OK);
    pair.consumer.reset();
    CHECK(feedlane_pool_destroy(&p) == FEEDLANE_E_STATE);
    CHECK(!device.registered().empty());
    for (int i = 0; i < 10; i++) (void)feedlane_loader_poll(pair.feeder.get(), nullptr);
    CHECK_MESSAGE(sharing::count_consumers(pair.feeder.get()) == 1, "it still holds a batch");
    device.only_stream().go_on();
    device.only_stream().wait();
    CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
    CHECK(device.registered().empty());
    CHECK(sharing::poll_until(pair.feeder.get(), [&] { return sharing::count_consumers(pair.feeder.get()) == 0; }));
  }
}
