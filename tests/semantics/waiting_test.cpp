// SPDX-License-Identifier: Apache-2.0
// Waiting: timeouts, interrupts, and a foreign event loop with plain poll(2).
#include <doctest/doctest.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "support/events.hpp"
#include "support/over_fork.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// A loader whose workers stand before a gate.
struct Gated {
  explicit Gated(std::int64_t gate_index, std::int32_t workers = 2, std::int64_t samples = 12) : setup(samples, 2) {
    setup.workers(workers);
    setup.plan.gate_fd = gate.fd();
    setup.plan.gate_index = gate_index;
    setup.plan.report_fd = reports.fd();
    loader = setup.create();
    fd = -1;
    REQUIRE(wait_fd_of(get(), &fd) == FEEDLANE_OK);
  }
  feedlane_loader* get() const { return loader.get(); }
  Gate gate;
  Reports reports;
  Setup setup;
  Loader loader;
  int fd = -1;
};

// One turn of a foreign loop: sleeps if arm says so. False if nothing came in time.
bool sleep_if_armed(feedlane_loader* l, int fd, std::int64_t timeout_ns = patience_ns) {
  const std::int32_t armed = feedlane_loader_arm(l, nullptr);
  CHECK((armed == FEEDLANE_OK || armed == FEEDLANE_AGAIN));
  return armed == FEEDLANE_AGAIN || wait_readable(fd, timeout_ns);
}

// Until the trainer has nothing to do: the foreign loop sleeps and stays asleep.
bool is_quiet(Gated& g) {
  for (int turn = 0; turn < 1000; turn++) {
    if (!sleep_if_armed(g.get(), g.fd, 50'000'000)) return true;
    if (take(g.get(), nullptr, 0).status != FEEDLANE_TIMEOUT) return false;
  }
  return false;
}

}  // namespace

// promise: next-has-timeout, next-usable-after-timeout, torch-timeout
TEST_CASE("next returns TIMEOUT in time although other batches arrive, and the loader stays usable") {
  Gated g(0);
  begin(g.get(), 0);
  const auto before = std::chrono::steady_clock::now();
  CHECK(take(g.get(), nullptr, 30'000'000).status == FEEDLANE_TIMEOUT);
  const auto waited = std::chrono::steady_clock::now() - before;
  CHECK(waited >= std::chrono::milliseconds(30));
  CHECK(waited < std::chrono::seconds(10));
  CHECK(take(g.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
  g.gate.open();
  check_sequence(take_rest(g.get()), 12, 2);
}

// promise: next-timeout-not-restarted
TEST_CASE("batches that arrive during next don't restart its timeout") {
  // Two processes: one stands before the gate with batch 0, the other makes a batch every 10 ms.
  static std::atomic<std::int64_t>* made = nullptr;
  static Gate* gate = nullptr;
  const OverFork<std::atomic<std::int64_t>> shared;
  made = &*shared;
  Gate closed;
  gate = &closed;
  auto table = fresh<feedlane_dataset>();
  table.get = [](void*, const feedlane_row* row, feedlane_error*) {
    if (row->index == 0) (void)wait_readable(gate->fd());
    else ::usleep(10'000);
    std::memcpy(row->fields[0], &row->index, sizeof row->index);
    if (row->index != 0) made->fetch_add(1, std::memory_order_relaxed);
    return std::int32_t{FEEDLANE_OK};
  };
  Setup s(400);
  s.forked(2, table).fields({field("index", int64_type)});
  s.config.prefetch_factor = 200;
  const Loader l = s.create();
  begin(l.get(), 0);
  const auto so_far = [] { return made->load(std::memory_order_relaxed); };
  std::int64_t before = 0, after = 0;
  for (int i = 0; i < 10 && after == before; i++) {  // a busy machine may hold the worker up for a whole timeout
    before = so_far();
    CHECK(take(l.get(), nullptr, 100'000'000).status == FEEDLANE_TIMEOUT);
    after = so_far();
  }
  CHECK_MESSAGE(after > before, "batches arrived during the timeout");
  CHECK_MESSAGE(eventually([&] { return so_far() > after; }), "batches go on arriving");
  closed.open();
  CHECK(take_rest(l.get()).size() == 400);
}

// promise: next-negative-timeout
TEST_CASE("a negative timeout of next is refused with the argument's name, and no batch is taken") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Setup s(12, 2);
    if (workers != 0) s.workers(workers);
    const Loader l = s.create();
    begin(l.get(), 0);
    for (const std::int64_t timeout_ns : {std::int64_t{-1}, INT64_MIN}) {
      Error e;
      CHECK(take(l.get(), &e, timeout_ns).status == FEEDLANE_E_ARGUMENT);
      CHECK(std::string(e.argument) == "timeout_ns");
      CHECK(e.found == timeout_ns);
      CHECK(e.needed == 0);
    }
    check_sequence(take_rest(l.get()), 12, 2);
  }
}

// promise: next-slots-held
TEST_CASE("a release from another thread wakes a trainer that waits in next for a slot") {
  Gated g(6, 2, 16);  // batch 3 of 8
  begin(g.get(), 0);
  std::vector<std::uint64_t> held;
  for (int i = 0; i < 3; i++) {
    auto b = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(g.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
    held.push_back(b.token);
  }
  REQUIRE(stats_of(g.get()).slots == 6);
  CHECK_MESSAGE(stats_of(g.get()).slots_free == 0, "three are held, three are out: one more would fit the window");
  bool asked = false;
  std::thread other([&, trainer = ::gettid()] {
    (void)eventually([&] { return is_asleep(trainer); });
    (void)feedlane_batch_release(g.get(), held[0]);
    asked = eventually([&] { return stats_of(g.get()).slots_free == 0; });
    g.gate.open();
  });
  const Taken t = take(g.get());
  other.join();
  CHECK(asked);
  CHECK(t.batch == 3);
  CHECK(feedlane_batch_release(g.get(), held[1]) == FEEDLANE_OK);
  CHECK(feedlane_batch_release(g.get(), held[2]) == FEEDLANE_OK);
  CHECK(take_rest(g.get()).size() == 4);
}

// promise: fault-ctrl-c-interrupts
TEST_CASE("an interrupt from another thread ends the wait in next, and no batch is lost") {
  Gated g(0);
  begin(g.get(), 0);
  std::thread other([&] {
    (void)g.reports.wait_for(Report::began);
    (void)feedlane_loader_interrupt(g.get());
  });
  const std::int32_t status = take(g.get(), nullptr, FEEDLANE_FOREVER).status;
  other.join();
  CHECK(status == FEEDLANE_INTERRUPTED);
  g.gate.open();
  check_sequence(take_rest(g.get()), 12, 2);
}

// promise: fault-ctrl-c-interrupts
TEST_CASE("after an interrupt exactly one call of next returns INTERRUPTED, even if a batch is ready") {
  Gated g(-1);
  begin(g.get(), 0);
  CHECK(feedlane_loader_interrupt(g.get()) == FEEDLANE_OK);
  CHECK(feedlane_loader_interrupt(g.get()) == FEEDLANE_OK);
  CHECK(take(g.get()).status == FEEDLANE_INTERRUPTED);
  check_sequence(take_rest(g.get()), 12, 2);
}

// promise: fault-ctrl-c-interrupts
TEST_CASE("after an interrupt, poll returns AGAIN until next has returned INTERRUPTED") {
  Gated g(-2);
  begin(g.get(), 0);
  CHECK(feedlane_loader_interrupt(g.get()) == FEEDLANE_OK);
  CHECK(feedlane_loader_poll(g.get(), nullptr) == FEEDLANE_AGAIN);
  CHECK(feedlane_loader_arm(g.get(), nullptr) == FEEDLANE_AGAIN);
  CHECK(take(g.get()).status == FEEDLANE_INTERRUPTED);
  CHECK(feedlane_loader_poll(g.get(), nullptr) == FEEDLANE_OK);
  g.gate.open();
  check_sequence(take_rest(g.get()), 12, 2);
}

// promise: fault-ctrl-c-interrupts, trainer-signal
TEST_CASE("a signal to the waiting thread ends the wait with INTERRUPTED") {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  REQUIRE(::sigaction(SIGUSR1, &action, &before) == 0);
  Gated g(0);
  begin(g.get(), 0);
  std::atomic<bool> done{false};
  std::thread other([&, trainer = ::pthread_self()] {
    (void)g.reports.wait_for(Report::began);
    while (!done) {  // until one of them finds it asleep
      (void)::pthread_kill(trainer, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const std::int32_t status = take(g.get(), nullptr, FEEDLANE_FOREVER).status;
  done = true;
  other.join();
  CHECK(status == FEEDLANE_INTERRUPTED);
  g.gate.open();
  std::vector<Taken> taken;
  for (Taken t = take(g.get()); t.status != FEEDLANE_END; t = take(g.get()))
    if (t.status != FEEDLANE_INTERRUPTED) taken.push_back(std::move(t));
  check_sequence(taken, 12, 2);
  REQUIRE(::sigaction(SIGUSR1, &before, nullptr) == 0);
}

// promise: next-foreign-loop
TEST_CASE("a foreign event loop takes a whole epoch with arm and poll(2), and sleeps while no batch is ready") {
  Gated g(4);
  begin(g.get(), 0);
  wait_until_ready(g.get(), 2);
  std::vector<Taken> taken;
  int turns = 0;
  bool was_quiet = false;
  for (;;) {
    Taken t = take(g.get(), nullptr, 0);
    if (t.status == FEEDLANE_END) break;
    if (t.status == FEEDLANE_OK) {
      taken.push_back(std::move(t));
      if (taken.size() == 2) {
        was_quiet = is_quiet(g);
        CHECK_FALSE_MESSAGE(wait_readable(g.fd, 0), "still asleep");
        g.gate.open();
        CHECK_MESSAGE(wait_readable(g.fd), "the batch's arrival wakes it");
      }
      continue;
    }
    REQUIRE(t.status == FEEDLANE_TIMEOUT);
    REQUIRE(sleep_if_armed(g.get(), g.fd));
    REQUIRE(++turns < 200);
  }
  CHECK(was_quiet);
  check_sequence(taken, 12, 2);
  CHECK_MESSAGE(turns < 60, "no more wake-ups than there is news");
}

// promise: next-foreign-loop
TEST_CASE("poll returns AGAIN when a batch or the end is ready, and 0 when not") {
  Gated g(0);
  CHECK(feedlane_loader_poll(g.get(), nullptr) == FEEDLANE_OK);
  begin(g.get(), 0);
  REQUIRE(g.reports.wait_for(Report::began));
  CHECK(feedlane_loader_poll(g.get(), nullptr) == FEEDLANE_OK);
  g.gate.open();
  for (std::int64_t batch = 0; batch < 7; batch++) {
    REQUIRE(eventually([&] { return feedlane_loader_poll(g.get(), nullptr) == FEEDLANE_AGAIN; }));
    const Taken t = take(g.get(), nullptr, 0);
    CHECK(t.status == (batch < 6 ? FEEDLANE_OK : FEEDLANE_END));
  }
}

// promise: fault-worker-dies
TEST_CASE("poll detects killed workers and replaces them, without a call of next") {
  Gated g(0, 1);
  begin(g.get(), 0);
  const auto first = g.reports.wait_for(Report::began);
  REQUIRE(first);
  REQUIRE(::kill(static_cast<pid_t>(first->pid), SIGKILL) == 0);
  REQUIRE(wait_readable(g.fd));
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(g.get(), nullptr);
    return stats_of(g.get()).restarts == 1;
  }));
  const auto second = g.reports.wait_for(Report::began);
  REQUIRE(second);
  CHECK(second->pid != first->pid);
  CHECK(second->index == 0);
  CHECK(second->attempt == 1);
  g.gate.open();
  check_sequence(take_rest(g.get()), 12, 2);
}

// promise: next-foreign-loop
TEST_CASE("the death of a worker wakes a foreign event loop that is asleep") {
  Gated g(0, 1);
  begin(g.get(), 0);
  const auto first = g.reports.wait_for(Report::began);
  REQUIRE(first);
  REQUIRE(is_quiet(g));
  REQUIRE(::kill(static_cast<pid_t>(first->pid), SIGKILL) == 0);
  CHECK(wait_readable(g.fd));
}

// Bells are edge-triggered inside, the descriptor as a whole is not: whoever polls it by edges loses nothing.
// promise: next-foreign-loop
TEST_CASE("an edge-triggered foreign event loop with a duplicate of the descriptor loses no wake-up") {
  Gated g(-1, 2, 600);  // what they report fits a pipe
  const int copy = ::dup(g.fd);
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event wanted{};
  wanted.events = EPOLLIN | EPOLLRDHUP | EPOLLET;  // as Go's runtime asks
  REQUIRE(::epoll_ctl(set, EPOLL_CTL_ADD, copy, &wanted) == 0);
  begin(g.get(), 0);
  std::vector<Taken> taken;
  int slept = 0;
  for (;;) {
    Taken t = take(g.get(), nullptr, 0);
    if (t.status == FEEDLANE_END) break;
    if (t.status == FEEDLANE_OK) {
      taken.push_back(std::move(t));
      continue;
    }
    REQUIRE(t.status == FEEDLANE_TIMEOUT);
    if (feedlane_loader_arm(g.get(), nullptr) != FEEDLANE_OK) continue;
    epoll_event event{};
    REQUIRE(::epoll_wait(set, &event, 1, static_cast<int>(patience_ns / 1'000'000)) == 1);
    slept++;
  }
  CHECK(slept > 0);
  check_sequence(taken, 600, 2);
  (void)::close(set);
  (void)::close(copy);
}

// promise: next-has-timeout
TEST_CASE("the time that next waits for a batch, asleep or spinning, is counted, and is zero for a ready batch") {
  Gated g(0);
  begin(g.get(), 0);
  const std::uint64_t before = stats_of(g.get()).wait_ns;
  CHECK(take(g.get(), nullptr, 30'000'000).status == FEEDLANE_TIMEOUT);
  CHECK(stats_of(g.get()).wait_ns - before >= 30'000'000);
  g.gate.open();
  REQUIRE(eventually([&] { return feedlane_loader_poll(g.get(), nullptr) == FEEDLANE_AGAIN; }));
  const std::uint64_t waited = stats_of(g.get()).wait_ns;
  REQUIRE(take(g.get()).status == FEEDLANE_OK);
  CHECK(stats_of(g.get()).wait_ns == waited);
  CHECK_MESSAGE(stats_of(g.get()).start_wait_ns == waited, "it was the first one");
}

// promise: next-has-timeout
TEST_CASE("a wait that ends before next would sleep is counted completely") {
  Gated g(0, 1);
  begin(g.get(), 0);
  REQUIRE(g.reports.wait_for(Report::began));
  const std::uint64_t before = stats_of(g.get()).wait_ns;
  constexpr std::int64_t timeout_ns = 80'000;  // it looks for longer before it sleeps
  CHECK(take(g.get(), nullptr, timeout_ns).status == FEEDLANE_TIMEOUT);
  CHECK(stats_of(g.get()).wait_ns - before >= timeout_ns * 9 / 10);
}

// promise: next-has-timeout
TEST_CASE("a batch counts as waited for if an earlier next with timeout 0 did not get it") {
  for (const bool has_asked : {false, true}) {
    CAPTURE(has_asked);
    Gated g(0);
    begin(g.get(), 0);
    REQUIRE(g.reports.wait_for(Report::began));
    if (has_asked) CHECK(take(g.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
    g.gate.open();
    REQUIRE(eventually([&] { return feedlane_loader_poll(g.get(), nullptr) == FEEDLANE_AGAIN; }));
    auto b = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(g.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
    CHECK((b.exposed_ns != 0) == has_asked);
    CHECK(feedlane_batch_release(g.get(), b.token) == FEEDLANE_OK);
  }
}

// promise: next-foreign-loop
TEST_CASE("a deadline wakes a foreign event loop that is asleep") {
  int never[2] = {-1, -1};
  REQUIRE(::pipe(never) == 0);
  Setup s(4);
  s.plan.stuck_fd = never[0];
  s.plan.stuck_index = 1;
  s.config.task_timeout_ns = 200'000'000;
  s.workers(1);
  const Loader l = s.create();
  int fd = -1;
  REQUIRE(wait_fd_of(l.get(), &fd) == FEEDLANE_OK);
  begin(l.get(), 0);
  std::vector<Taken> taken;
  while (taken.size() < 4) {
    REQUIRE(sleep_if_armed(l.get(), fd));
    while (feedlane_loader_poll(l.get(), nullptr) == FEEDLANE_AGAIN && taken.size() < 4) taken.push_back(take(l.get()));
  }
  check_sequence(taken, 4, 1);
  CHECK(stats_of(l.get()).hung == 1);
  for (const int end : never) (void)::close(end);
}

// promise: next-foreign-loop
TEST_CASE(
    "the sleep of a foreign event loop before an epoch begins, or after it is stopped, is not counted as a wait") {
  Gated g(0);
  const auto sleep = [&] {
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(g.get(), nullptr);
      return feedlane_loader_arm(g.get(), nullptr) == FEEDLANE_OK;
    }));
    (void)wait_readable(g.fd, 5'000'000);
  };
  sleep();
  CHECK(stats_of(g.get()).wait_ns == 0);
  begin(g.get(), 0);
  REQUIRE(g.reports.wait_for(Report::began));
  sleep();
  g.gate.open();
  REQUIRE(feedlane_loader_stop(g.get(), nullptr) == FEEDLANE_OK);
  const std::uint64_t waited = stats_of(g.get()).wait_ns;
  (void)wait_readable(-1, 5'000'000);
  CHECK(stats_of(g.get()).wait_ns == waited);
}
