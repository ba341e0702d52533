// SPDX-License-Identifier: Apache-2.0
// Live samplers, which may have no index now: what the loader does until their descriptor is readable.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "semantics/sharing.hpp"
#include "semantics/states.hpp"
#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;
using Indices = std::vector<std::int64_t>;

namespace {

// Indices that any thread adds while a loader takes them. With `rows`, each addition is one batch.
struct Requests {
  explicit Requests(std::int64_t batch_rows = 0) : rows(batch_rows) {}
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests() { (void)::close(fd); }

  void add(const Indices& indices) {
    const std::lock_guard lock(mutex);
    for (const std::int64_t index : indices) log.push_back(index);
    if (rows != 0) ends.push_back(log.size());
    wake();
  }
  void end() {
    const std::lock_guard lock(mutex);
    has_ended = true;
    wake();
  }
  void wake() const { REQUIRE(::eventfd_write(fd, 1) == 0); }

  static std::int32_t next(void* self, std::int64_t* indices, std::uint64_t cap, std::uint64_t* got, feedlane_error*) {
    auto& r = *static_cast<Requests*>(self);
    r.asked++;
    eventfd_t ignored = 0;
    if (r.reads_fd) (void)::eventfd_read(r.fd, &ignored);
    const std::lock_guard lock(r.mutex);
    const auto end = std::upper_bound(r.ends.begin(), r.ends.end(), r.at);
    const std::size_t until = r.rows == 0 ? r.log.size() : end == r.ends.end() ? r.at : *end;
    *got = std::min<std::uint64_t>(cap, until - r.at);
    std::copy_n(r.log.begin() + static_cast<std::ptrdiff_t>(r.at), *got, indices);
    r.at += *got;
    return *got != 0 ? FEEDLANE_OK : r.has_ended ? FEEDLANE_END : FEEDLANE_AGAIN;
  }
  static std::int32_t save(void* self, void* buffer, std::uint64_t, std::uint64_t* bytes, feedlane_error*) {
    std::memcpy(buffer, &static_cast<Requests*>(self)->at, *bytes = sizeof(std::size_t));
    return FEEDLANE_OK;
  }
  static std::int32_t load(void* self, const void* buffer, std::uint64_t, feedlane_error*) {
    std::memcpy(&static_cast<Requests*>(self)->at, buffer, sizeof(std::size_t));
    return FEEDLANE_OK;
  }
  [[nodiscard]] feedlane_sampler_callbacks table() {
    auto table = fresh<feedlane_sampler_callbacks>();
    table.user_data = this;
    table.next = next;
    table.save = save;
    table.load = load;
    table.batch_rows = rows;
    table.wake_fd = fd;
    return table;
  }
  Sampler make() {
    const feedlane_sampler_callbacks callbacks = table();
    feedlane_sampler* s = nullptr;
    REQUIRE(custom_sampler(&callbacks, &s, nullptr) == FEEDLANE_OK);
    return Sampler(s);
  }

  const int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const std::int64_t rows;
  std::atomic<int> asked = 0;
  bool reads_fd = true;
  std::mutex mutex;
  Indices log;                    // everything that was added
  std::vector<std::size_t> ends;  // of batches in it
  std::size_t at = 0;             // taken so far
  bool has_ended = false;
};

// A loader of requests, which must outlive it. Without workers if `workers` is 0.
struct Live {
  Live(Requests& requests, std::int32_t workers, std::int64_t batch_size = 1) : setup(1, batch_size) {
    setup.sampler = requests.make();
    if (requests.rows != 0) setup.config.batch_size = 0;
    if (workers != 0) setup.workers(workers);
  }
  feedlane_loader* start() {
    loader = setup.create();
    begin(loader.get(), 0);
    return loader.get();
  }
  Setup setup;
  Loader loader;
};

Taken take_now(feedlane_loader* l) { return take(l, nullptr, 0); }

// Calls `f` in another thread when this one sleeps in `next`.
std::thread when_asleep(std::function<void()> f) {
  return std::thread([f = std::move(f), trainer = ::gettid()] {
    (void)eventually([&] { return is_asleep(trainer); });
    f();
  });
}

}  // namespace

// promise: sampler-live-wakes
TEST_CASE("a loader that sleeps because a live sampler has no index is woken by its descriptor") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Requests requests;
    Live live(requests, workers, 2);
    feedlane_loader* const l = live.start();
    CHECK(take_now(l).status == FEEDLANE_TIMEOUT);
    for (std::int64_t batch = 0; batch < 3; batch++) {
      std::thread producer = when_asleep([&] { requests.add({10 * batch, 10 * batch + 1}); });
      const Taken t = take(l, nullptr, FEEDLANE_FOREVER);
      producer.join();
      CHECK(t.batch == batch);
      CHECK(t.indices == Indices{10 * batch, 10 * batch + 1});
    }
    std::thread producer = when_asleep([&] { requests.end(); });
    CHECK(take(l, nullptr, FEEDLANE_FOREVER).status == FEEDLANE_END);
    producer.join();
  }
}

// promise: sampler-live-wakes
TEST_CASE("every index that threads add to a live sampler is yielded once, however the loader waits for it") {
  constexpr std::int64_t each = 300;
  for (const std::int32_t workers : {0, 1, 2}) {
    for (const std::int32_t prefetch : {1, 4}) {
      CAPTURE(workers);
      CAPTURE(prefetch);
      Requests requests;
      Live live(requests, workers);
      if (workers != 0) live.setup.config.prefetch_factor = prefetch;
      feedlane_loader* const l = live.start();
      std::atomic<int> left = 2;
      const auto produce = [&](std::int64_t first) {
        for (std::int64_t i = 0; i < each; i++) requests.add({first + i});
        if (--left == 0) requests.end();
      };
      std::thread a(produce, 0), b(produce, each);
      Indices all;
      Taken t = take(l);
      for (; t.status == FEEDLANE_OK; t = take(l)) all.push_back(t.indices[0]);
      a.join();
      b.join();
      CHECK(t.status == FEEDLANE_END);
      std::sort(all.begin(), all.end());
      Indices expected(2 * each);
      for (std::size_t i = 0; i < expected.size(); i++) expected[i] = static_cast<std::int64_t>(i);
      CHECK(all == expected);
    }
  }
}

// promise: sampler-live-batches
TEST_CASE("indices that don't fill a batch are kept until others fill it, or the epoch ends") {
  for (const std::int32_t workers : {0, 1}) {
    for (const std::int32_t drop_last : {0, 1}) {
      CAPTURE(workers);
      CAPTURE(drop_last);
      Requests requests;
      Live live(requests, workers, 3);
      live.setup.config.drop_last = drop_last;
      feedlane_loader* const l = live.start();
      requests.add({1});
      CHECK(take_now(l).status == FEEDLANE_TIMEOUT);
      requests.add({2});
      CHECK(take_now(l).status == FEEDLANE_TIMEOUT);
      requests.add({3, 4});
      CHECK(take(l).indices == Indices{1, 2, 3});
      CHECK(take_now(l).status == FEEDLANE_TIMEOUT);
      requests.end();
      if (drop_last == 0) CHECK(take(l).indices == Indices{4});
      CHECK(take(l).status == FEEDLANE_END);
    }
  }
}

// promise: sampler-live-batches
TEST_CASE("a live batch sampler closes a batch when it wants to") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Requests requests(4);
    Live live(requests, workers);
    feedlane_loader* const l = live.start();
    CHECK(take_now(l).status == FEEDLANE_TIMEOUT);
    requests.add({1});
    CHECK(take(l).indices == Indices{1});
    requests.add({2, 3, 4, 5});
    requests.add({6});
    CHECK(take(l).indices == Indices{2, 3, 4, 5});
    CHECK(take(l).indices == Indices{6});
    requests.end();
    CHECK(take(l).status == FEEDLANE_END);
  }
}

// promise: sampler-live-batches
TEST_CASE("a batch sampler over a live sampler is live") {
  Requests requests;
  const Sampler inner = requests.make();
  feedlane_sampler* batches = nullptr;
  REQUIRE(batch_sampler(inner.get(), 2, 1, &batches, nullptr) == FEEDLANE_OK);
  Setup setup(1);
  setup.sampler = Sampler(batches);
  setup.config.batch_size = 0;
  const Loader l = setup.create();
  begin(l.get(), 0);
  requests.add({1});
  CHECK(take_now(l.get()).status == FEEDLANE_TIMEOUT);
  std::thread producer = when_asleep([&] { requests.add({2, 3}); });
  CHECK(take(l.get()).indices == Indices{1, 2});
  producer.join();
  requests.end();
  CHECK_MESSAGE(take(l.get()).status == FEEDLANE_END, "the incomplete batch is dropped");
}

// promise: sampler-live-wakes
TEST_CASE("a live sampler without an index is asked once per call, not until the call's timeout") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Requests requests;
    Live live(requests, workers);
    feedlane_loader* const l = live.start();
    if (workers != 0) wait_until_ready(l, workers);
    CHECK(take_now(l).status == FEEDLANE_TIMEOUT);
    const int before = requests.asked;
    CHECK(take(l, nullptr, 30'000'000).status == FEEDLANE_TIMEOUT);
    CHECK(requests.asked - before == 1);
    const feedlane_stats s = stats_of(l);
    CHECK_MESSAGE(s.slots_free == s.slots, "a batch without indices has no slot");
  }
}

// promise: sampler-live-wakes
TEST_CASE("a descriptor that stays readable ends neither a timeout nor the trainer's sleep while the window is full") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Requests requests;
    requests.reads_fd = false;
    Live live(requests, workers);
    feedlane_loader* const l = live.start();
    requests.wake();
    CHECK(take(l, nullptr, 1'000'000).status == FEEDLANE_TIMEOUT);
  }
  Gate gate;
  Requests requests;
  requests.reads_fd = false;
  Live live(requests, 1);
  live.setup.plan.gate_fd = gate.fd();
  live.setup.plan.gate_index = -2;
  live.setup.config.prefetch_factor = 2;
  feedlane_loader* const l = live.start();
  requests.add({0, 1, 2, 3});
  CHECK(take_now(l).status == FEEDLANE_TIMEOUT);
  CHECK_MESSAGE(requests.at == 2, "no more than the window");
  const int before = requests.asked;
  std::thread opener = when_asleep([&] { gate.open(); });
  CHECK(take(l).indices == Indices{0});
  opener.join();
  CHECK(requests.asked - before <= 3);
  requests.end();
  CHECK(take_rest(l).size() == 3);
}

// promise: sampler-live-wakes, next-foreign-loop
TEST_CASE("a foreign event loop sleeps while a live sampler has no index, and its descriptor wakes the loop") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Requests requests;
    Live live(requests, workers);
    feedlane_loader* const l = live.start();
    int fd = -1;
    REQUIRE(wait_fd_of(l, &fd) == FEEDLANE_OK);
    if (workers != 0) wait_until_ready(l, workers);
    const auto next = [&] {
      for (;;) {
        Taken t = take_now(l);
        if (t.status != FEEDLANE_TIMEOUT) return t;
        if (feedlane_loader_arm(l, nullptr) == FEEDLANE_OK) REQUIRE(wait_readable(fd));
      }
    };
    REQUIRE(eventually([&] {
      return take_now(l).status == FEEDLANE_TIMEOUT && feedlane_loader_poll(l, nullptr) == FEEDLANE_OK &&
             feedlane_loader_arm(l, nullptr) == FEEDLANE_OK;
    }));
    CHECK_FALSE(wait_readable(fd, 0));
    requests.add({7});
    CHECK(wait_readable(fd, 0));
    CHECK(next().indices == Indices{7});
    std::thread producer = when_asleep([&] { requests.end(); });
    CHECK(next().status == FEEDLANE_END);
    producer.join();
  }
}

// promise: sampler-live-wakes, fault-worker-dies
TEST_CASE("while a live sampler has no index, dead workers are replaced") {
  Requests requests;
  Live live(requests, 1);
  feedlane_loader* const l = live.start();
  wait_until_ready(l, 1);
  const auto pid = static_cast<pid_t>(worker_of(l, 0).pid);
  std::thread other = when_asleep([&] {
    (void)::kill(pid, SIGKILL);
    (void)eventually([&] { return stats_of(l).restarts == 1; });
    requests.add({5});
  });
  const Taken t = take(l);
  other.join();
  CHECK(t.indices == Indices{5});
  CHECK(stats_of(l).restarts == 1);
}

// promise: sampler-live-wakes, fault-ctrl-c-interrupts
TEST_CASE("interrupt, stop and the next epoch end the wait for a live sampler") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Requests requests;
    Live live(requests, workers, 2);
    feedlane_loader* const l = live.start();
    requests.add({1});
    std::thread other = when_asleep([&] { (void)feedlane_loader_interrupt(l); });
    CHECK(take(l).status == FEEDLANE_INTERRUPTED);
    other.join();
    requests.add({2});
    CHECK(take(l).indices == Indices{1, 2});
    CHECK(take_now(l).status == FEEDLANE_TIMEOUT);
    REQUIRE(feedlane_loader_stop(l, nullptr) == FEEDLANE_OK);
    requests.add({3, 4});
    begin(l, 1);
    CHECK(take(l).indices == Indices{3, 4});
    begin(l, 2);
    CHECK(take_now(l).status == FEEDLANE_TIMEOUT);
    requests.end();
    CHECK(take(l).status == FEEDLANE_END);
  }
}

// promise: sampler-live-wakes, state-custom-sampler
TEST_CASE("a state of a live sampler has the position after its batch, without the indices kept for the next one") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Requests requests;
    Live live(requests, workers, 2);
    feedlane_loader* const l = live.start();
    requests.add({1, 2, 3});
    CHECK(take(l).indices == Indices{1, 2});
    CHECK(take_now(l).status == FEEDLANE_TIMEOUT);
    CHECK(requests.at == 3);
    const states::State state = states::state_of(l);
    Requests again;
    again.add({1, 2, 3});
    Live other(again, workers, 2);
    states::go_on(other.setup, state);
    feedlane_loader* const resumed = other.start();
    CHECK(take_now(resumed).status == FEEDLANE_TIMEOUT);
    again.add({4});
    const Taken t = take(resumed);
    CHECK(t.batch == 1);
    CHECK(t.indices == Indices{3, 4});
  }
}

// promise: sampler-live-wakes, next-slots-held
TEST_CASE("if the trainer holds every slot, next returns SLOTS_HELD although a live sampler has no index") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Requests requests;
    Live live(requests, workers);
    live.setup.config.held = 1;
    live.setup.config.prefetch_factor = workers;
    feedlane_loader* const l = live.start();
    const std::uint64_t slots = stats_of(l).slots;
    std::vector<std::uint64_t> held;
    for (std::uint64_t i = 0; i < slots; i++) {
      requests.add({static_cast<std::int64_t>(i)});
      auto b = fresh<feedlane_batch>();
      REQUIRE(feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK);
      held.push_back(b.token);
    }
    CHECK(take_now(l).status == FEEDLANE_SLOTS_HELD);
    CHECK(feedlane_batch_release(l, held[0]) == FEEDLANE_OK);
    CHECK(take_now(l).status == FEEDLANE_TIMEOUT);
    for (std::size_t i = 1; i < held.size(); i++) CHECK(feedlane_batch_release(l, held[i]) == FEEDLANE_OK);
  }
}

// promise: sampler-live-wakes, next-has-timeout
TEST_CASE("the time in which a live sampler has no index does not count as waiting for batches") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Requests requests;
    Live live(requests, workers);
    feedlane_loader* const l = live.start();
    requests.add({1});
    CHECK(take(l).indices == Indices{1});
    const std::uint64_t before = stats_of(l).wait_ns;
    constexpr std::int64_t idle_ns = 200'000'000;
    CHECK(take(l, nullptr, idle_ns).status == FEEDLANE_TIMEOUT);
    CHECK(stats_of(l).wait_ns - before < idle_ns / 2);
  }
}

// promise: sampler-live-wakes
TEST_CASE("consumers of a feeder get what a live sampler yields, and the end") {
  Requests requests;
  Live live(requests, 1);
  const Loader feeder = sharing::shared(live.setup, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader consumer = sharing::join_here(feeder.get());
  sharing::Serving serving(feeder.get());
  begin(consumer.get(), 0);
  for (std::int64_t i = 0; i < 3; i++) {
    std::thread producer = when_asleep([&] { requests.add({i}); });
    CHECK(take(consumer.get()).indices == Indices{i});
    producer.join();
  }
  requests.end();
  CHECK(take(consumer.get()).status == FEEDLANE_END);
}

// promise: sampler-live-wakes
TEST_CASE("a feeder whose last consumer leaves while a live sampler has no index returns E_PEER_DEAD") {
  Requests requests;
  Live live(requests, 1);
  const Loader feeder = sharing::shared(live.setup, FEEDLANE_SHARE_EVERY, 1).create();
  Loader consumer = sharing::join_here(feeder.get());
  begin(feeder.get(), 0);
  std::thread other = when_asleep([&] { consumer.reset(); });
  CHECK(sharing::serve(feeder.get()) == FEEDLANE_E_PEER_DEAD);
  other.join();
}

// promise: sampler-live-refused
TEST_CASE("a loader refuses a live sampler's descriptor that epoll cannot watch, and names it") {
  Requests requests;
  const auto refused_fd = [&](int fd) {
    auto table = requests.table();
    table.wake_fd = fd;
    feedlane_sampler* s = nullptr;
    REQUIRE(custom_sampler(&table, &s, nullptr) == FEEDLANE_OK);
    Setup setup(1);
    setup.sampler = Sampler(s);
    Loader l;
    Error e;
    CHECK(setup.try_create(l, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == "callbacks.wake_fd");
    CHECK(e.found == fd);
    CHECK(e.says("pass an eventfd"));
    return e.says("not open");
  };
  const int closed = ::fcntl(requests.fd, F_DUPFD_CLOEXEC, 500);  // a number that the loader's own don't take
  REQUIRE(::close(closed) == 0);
  CHECK(refused_fd(closed));
  const int file = ::fileno(std::tmpfile());
  CHECK_FALSE(refused_fd(file));
}
