// SPDX-License-Identifier: Apache-2.0
// A loader closed from any thread, and its references: waits end, finalizers don't, and nobody touches freed memory.
#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr std::int64_t an_hour_ns = 3'600'000'000'000;

// Workers stand before a gate, and have an hour to end when they are asked to.
struct Gated {
  explicit Gated(std::int32_t workers = 1) : setup(12, 2) {
    setup.workers(workers);
    setup.config.stop_timeout_ns = setup.config.term_timeout_ns = an_hour_ns;
    setup.plan.gate_fd = gate.fd();
    setup.plan.gate_index = 2;
    setup.plan.report_fd = reports.fd();
    setup.config.held = 3;
    loader = setup.create().release();
    begin(loader, 0);
  }
  Gated(const Gated&) = delete;
  Gated& operator=(const Gated&) = delete;
  ~Gated() {
    gate.open();
    (void)feedlane_loader_destroy(&loader);
  }
  // One batch is there; then nothing comes before the gate opens. The worker that stands there.
  pid_t wait_at_gate() {
    for (auto r = reports.wait_for(Report::began); r; r = reports.wait_for(Report::began))
      if (r->index == 2) return static_cast<pid_t>(r->pid);
    return -1;
  }
  void take_one() const { REQUIRE(take(loader).status == FEEDLANE_OK); }
  Gate gate;
  Reports reports;
  Setup setup;
  feedlane_loader* loader = nullptr;
};

// `call` in a thread of its own, which sleeps in it when this returns.
class Waiting {
 public:
  explicit Waiting(std::function<std::int32_t()> call)
      : thread_([this, call] {
          id_ = ::gettid();
          answer_ = call();
        }) {
    while (id_ == 0) std::this_thread::yield();
    asleep_ = eventually([this] { return is_asleep(id_); });
  }
  ~Waiting() {
    if (thread_.joinable()) thread_.join();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  std::int32_t answer() {
    CHECK(asleep_);
    thread_.join();
    return answer_;
  }

 private:
  std::atomic<pid_t> id_{0};
  std::atomic<std::int32_t> answer_{-1000};
  bool asleep_ = false;
  std::thread thread_;
};

std::int32_t next_of(feedlane_loader* l, feedlane_error* e = nullptr) {
  auto b = fresh<feedlane_batch>();
  const std::int32_t status = feedlane_loader_next(l, FEEDLANE_FOREVER, &b, e);
  if (status == FEEDLANE_OK) (void)feedlane_batch_release(l, b.token);  // it would keep the loader's memory
  return status;
}

}  // namespace

TEST_CASE("close ends a wait in next with E_STATE, and every later call returns E_STATE") {
  Gated g;
  (void)g.wait_at_gate();
  g.take_one();
  Error e;
  Waiting waiting([&] { return next_of(g.loader, &e); });
  CHECK(feedlane_loader_close(g.loader) == FEEDLANE_OK);
  CHECK(waiting.answer() == FEEDLANE_E_STATE);
  CHECK(e.code == FEEDLANE_E_STATE);
  CHECK(e.says("closed"));
  auto stats = fresh<feedlane_stats>();
  std::int64_t length = 0;
  CHECK(next_of(g.loader) == FEEDLANE_E_STATE);
  CHECK(feedlane_loader_begin(g.loader, 1, nullptr) == FEEDLANE_E_STATE);
  CHECK(feedlane_loader_poll(g.loader, nullptr) == FEEDLANE_E_STATE);
  CHECK(feedlane_loader_arm(g.loader, nullptr) == FEEDLANE_E_STATE);
  CHECK(feedlane_loader_stop(g.loader, nullptr) == FEEDLANE_E_STATE);
  CHECK(observe(g.loader, feedlane_monitor_get_stats, &stats) == FEEDLANE_E_STATE);
  CHECK(length_of(g.loader, &length) == FEEDLANE_E_STATE);
  CHECK(feedlane_loader_interrupt(g.loader) == FEEDLANE_E_STATE);
  CHECK_MESSAGE(feedlane_loader_close(g.loader) == FEEDLANE_OK, "once more is nothing");
}

TEST_CASE("close ends a wait in stop, and a later destroy waits for the workers") {
  Gated g;
  const pid_t worker = g.wait_at_gate();
  Waiting waiting([&] { return feedlane_loader_stop(g.loader, nullptr); });
  CHECK(feedlane_loader_close(g.loader) == FEEDLANE_OK);
  CHECK(waiting.answer() == FEEDLANE_E_STATE);
  CHECK(is_running(worker));
  g.gate.open();
  CHECK(feedlane_loader_destroy(&g.loader) == FEEDLANE_OK);
  CHECK(g.loader == nullptr);
  CHECK_FALSE(is_running(worker));
}

TEST_CASE("close asks the workers to end without any further call") {
  Gated g(2);
  (void)g.wait_at_gate();
  std::vector<pid_t> pids;
  for (std::int32_t w = 0; w < 2; w++) pids.push_back(static_cast<pid_t>(worker_of(g.loader, w).pid));
  CHECK(feedlane_loader_close(g.loader) == FEEDLANE_OK);
  g.gate.open();
  for (const pid_t pid : pids) CHECK(eventually([pid] { return !is_running(pid); }));
}

TEST_CASE("close while another thread takes batches asks the workers to end") {
  for (int round = 0; round < 20; round++) {
    Setup s(1'000'000);
    s.workers(1).config.held = 2;
    feedlane_loader* l = s.create().release();
    begin(l, 0);
    REQUIRE(take(l).status == FEEDLANE_OK);
    const auto pid = static_cast<pid_t>(worker_of(l, 0).pid);
    std::thread trainer([l] {
      auto b = fresh<feedlane_batch>();
      while (feedlane_loader_next(l, FEEDLANE_FOREVER, &b, nullptr) == FEEDLANE_OK)
        (void)feedlane_batch_release(l, b.token);
    });
    CHECK(feedlane_loader_close(l) == FEEDLANE_OK);
    trainer.join();
    CHECK(eventually([pid] { return !is_running(pid); }));
    CHECK(feedlane_loader_destroy(&l) == FEEDLANE_OK);
  }
}

TEST_CASE("batches of a closed and released loader stay valid and are released through the handle") {
  Setup s(4, 2);
  feedlane_loader* l = s.create().release();
  begin(l, 0);
  auto b = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK);
  CHECK(feedlane_loader_close(l) == FEEDLANE_OK);
  CHECK(feedlane_batch_retain(l, b.token) == FEEDLANE_OK);
  CHECK(feedlane_batch_release(l, b.token) == FEEDLANE_OK);
  CHECK(feedlane_loader_unref(l) == FEEDLANE_OK);
  CHECK(copy_of(b).value("index", 1) == 1);
  CHECK_MESSAGE(feedlane_loader_ref(l) == FEEDLANE_E_STATE, "without owners it can't get one");
  CHECK_MESSAGE(feedlane_loader_unref(l) == FEEDLANE_E_STATE, "once too often");
  CHECK(feedlane_batch_release(l, b.token) == FEEDLANE_OK);
}

TEST_CASE("destroy ends another thread's next with E_STATE and then frees the loader") {
  Gated g;
  const pid_t worker = g.wait_at_gate();
  g.take_one();
  Waiting waiting([l = g.loader] { return next_of(l); });
  g.gate.open();
  CHECK(feedlane_loader_destroy(&g.loader) == FEEDLANE_OK);
  CHECK(g.loader == nullptr);
  const std::int32_t answer = waiting.answer();
  CHECK((answer == FEEDLANE_E_STATE || answer == FEEDLANE_OK));  // the batch that the gate held up
  CHECK_FALSE(is_running(worker));
}

TEST_CASE("destroy waits for a callback of next in another thread") {
  static std::atomic<int> entered, left;
  entered = left = 0;
  Setup s(4);
  const Gate gate;
  static int fd;
  fd = gate.fd();
  s.dataset = fresh<feedlane_dataset>();
  s.dataset.get = [](void*, const feedlane_row*, feedlane_error*) {
    entered = 1;
    (void)wait_readable(fd);
    left = 1;
    return 0;
  };
  feedlane_loader* l = s.create().release();
  begin(l, 0);
  std::thread inside([l] {
    const std::int32_t answer = next_of(l);
    CHECK((answer == FEEDLANE_E_STATE || answer == FEEDLANE_OK));
  });
  while (entered == 0) std::this_thread::yield();
  std::thread opener([&] {
    auto stats = fresh<feedlane_stats>();
    while (observe(l, feedlane_monitor_get_stats, &stats) != FEEDLANE_E_STATE)
      std::this_thread::yield();  // it is being destroyed
    gate.open();
  });
  feedlane_loader* copy = l;
  REQUIRE(feedlane_loader_ref(l) == FEEDLANE_OK);  // the opener's
  CHECK(feedlane_loader_destroy(&copy) == FEEDLANE_OK);
  CHECK(left == 1);
  inside.join();
  opener.join();
  CHECK(feedlane_loader_unref(l) == FEEDLANE_OK);
}

TEST_CASE("a statistics call that holds a reference and races with destroy returns numbers or E_STATE") {
  for (int round = 0; round < 50; round++) {
    Setup s(4);
    feedlane_loader* l = s.create().release();
    std::vector<std::thread> watchers;
    for (int i = 0; i < 2; i++) {
      REQUIRE(feedlane_loader_ref(l) == FEEDLANE_OK);
      watchers.emplace_back([l] {
        auto stats = fresh<feedlane_stats>();
        auto event = fresh<feedlane_event>();
        while (observe(l, feedlane_monitor_get_stats, &stats) == FEEDLANE_OK &&
               feedlane_loader_event(l, &event) == FEEDLANE_END) {
        }
        CHECK(feedlane_loader_unref(l) == FEEDLANE_OK);
      });
    }
    begin(l, 0);
    (void)take(l);
    CHECK(feedlane_loader_destroy(&l) == FEEDLANE_OK);
    for (std::thread& t : watchers) t.join();
  }
}

TEST_CASE("releasing the last reference doesn't wait: a busy worker is killed, and the next loader reaps it") {
  pid_t worker = -1;
  {
    Gated g;
    worker = g.wait_at_gate();
    REQUIRE(feedlane_loader_ref(g.loader) == FEEDLANE_OK);
    CHECK(feedlane_loader_unref(g.loader) == FEEDLANE_OK);
    CHECK_MESSAGE(is_running(worker), "not the last one");
    CHECK(feedlane_loader_unref(std::exchange(g.loader, nullptr)) == FEEDLANE_OK);
    CHECK(eventually([worker] { return !is_running(worker); }));  // though the gate is shut and it had an hour
  }
  Setup another(1);
  CHECK(eventually([&] {
    const Loader l = another.create();
    return state_of(worker) == 'X';
  }));
}

TEST_CASE("if the last reference is released during next or in its callback, next frees the loader when it returns") {
  static feedlane_loader* l;
  static std::atomic<int> entered;
  static int fd;
  const Gate gate;
  fd = gate.fd();
  Setup s(4);
  s.dataset = fresh<feedlane_dataset>();
  s.dataset.get = [](void*, const feedlane_row*, feedlane_error*) { return feedlane_loader_unref(l); };
  l = s.create().release();
  begin(l, 0);
  CHECK(next_of(l) == FEEDLANE_E_STATE);

  entered = 0;
  s.dataset.get = [](void*, const feedlane_row*, feedlane_error* e) {
    entered = 1;
    (void)wait_readable(fd);
    return e->code = FEEDLANE_E_SAMPLE;
  };
  l = s.create().release();
  begin(l, 0);
  std::thread inside([] { CHECK(next_of(l) < 0); });
  while (entered == 0) std::this_thread::yield();
  CHECK(feedlane_loader_unref(l) == FEEDLANE_OK);
  gate.open();
  inside.join();
}

// Tokens can be guessed: the generation that comes next in a slot, or one of another loader.
TEST_CASE("releasing the token that next is about to return never frees the loader during next") {
  Setup s(std::int64_t{1} << 20);
  s.config.held = 2;
  feedlane_loader* l = s.create().release();
  std::atomic<std::uint64_t> last{0};
  std::atomic<bool> is_over{false};
  std::thread thief([&] {
    while (!is_over)
      for (std::uint64_t ahead = 1; ahead < 4; ahead++)
        for (std::uint64_t slot = 0; slot < 3; slot++)
          (void)feedlane_batch_release(l, (((last >> 24) + ahead) << 24) | slot);
  });
  begin(l, 0);
  for (int i = 0; i < 300'000; i++) {
    auto b = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(l, 0, &b, nullptr) == FEEDLANE_OK);
    last = b.token;
    (void)feedlane_batch_release(l, b.token);
  }
  is_over = true;
  thief.join();
  CHECK(feedlane_loader_destroy(&l) == FEEDLANE_OK);
}
