// SPDX-License-Identifier: Apache-2.0
// 3. Dispatch: one slow worker doesn't hold a queue of batches back.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>

#include <string>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr std::int64_t samples = 64;

std::uint64_t made(const feedlane_loader* l, std::int32_t workers) {
  std::uint64_t sum = 0;
  for (std::int32_t w = 0; w < workers; w++) sum += worker_of(l, w).samples;
  return sum;
}

// Four workers with room for sixteen tasks each; the one that gets sample 0 doesn't come back from it until told.
struct Stuck {
  explicit Stuck(const char* form = "get") {
    s.plan.gate_fd = gate.fd();
    s.plan.gate_index = 0;
    s.config.prefetch_factor = 16;
    s.config.keep_workers = 1;
    s.workers(4, form);
  }
  Setup s{samples};
  Gate gate;
};

}  // namespace

// promise: dispatch-least-loaded, worker-slow-sample
TEST_CASE("tasks queued behind a stuck sample are made by other workers, and batches stay in order") {
  for (const char* form : {"get", "pull"}) {
    Stuck stuck(form);
    const Loader l = stuck.s.create();
    begin(l.get(), 0);
    // All but the one that is stuck, before it goes on.
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(l.get(), nullptr);
      return made(l.get(), 4) == samples - 1;
    }));
    CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
    stuck.gate.open();
    const std::vector<Taken> all = take_rest(l.get());
    check_sequence(all, samples, 1);
    for (const Taken& t : all) CHECK(t.attempt == 0);
    CHECK(stats_of(l.get()).redispatched == 0);
    CHECK(stats_of(l.get()).invalid_results == 0);
    // No worker is stuck any more, but workers still take tasks from each other.
    for (std::int64_t epoch = 1; epoch < 20; epoch++) check_sequence(take_epoch(l.get(), epoch), samples, 1);
    CHECK(stats_of(l.get()).invalid_results == 0);
  }
}

// promise: dispatch-least-loaded
TEST_CASE("after a stuck worker whose tasks were taken over is killed, another worker makes its sample") {
  Stuck stuck;
  const Reports reports;
  stuck.s.plan.report_fd = reports.fd();
  const Loader l = stuck.s.create();
  // Once through with the gate open: tasks of one that is still starting are given away too, sample 0 among them, to be begun
  // last.
  stuck.gate.open();
  check_sequence(take_epoch(l.get(), 0), samples, 1);
  wait_until_ready(l.get(), 4);
  stuck.gate.shut();
  (void)reports.drain();
  const std::uint64_t before = made(l.get(), 4);
  begin(l.get(), 1);
  pid_t busy = 0;
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    for (const Report& r : reports.drain())
      if (r.what == Report::began && r.index == 0) busy = static_cast<pid_t>(r.pid);
    return busy != 0 && made(l.get(), 4) - before == samples - 1;
  }));
  REQUIRE(::kill(busy, SIGKILL) == 0);
  stuck.gate.open();
  check_sequence(take_rest(l.get()), samples, 1);
  CHECK(stats_of(l.get()).redispatched == 1);
}

// promise: dispatch-least-loaded
TEST_CASE("tasks sent later to a worker with a stuck sample are made by the other worker") {
  const Gate gate;
  Setup s(400);
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = 0;
  s.config.prefetch_factor = 8;
  s.config.out_of_order = 1;
  const Loader l = s.workers(2).create();
  begin(l.get(), 0);
  std::vector<bool> seen(400);
  for (int i = 0; i < 399; i++) {
    const Taken t = take(l.get());
    REQUIRE(t.status == FEEDLANE_OK);
    seen[static_cast<std::size_t>(t.batch)] = true;
  }
  CHECK_FALSE(seen[0]);
  gate.open();
  CHECK(take(l.get()).batch == 0);
  CHECK(take(l.get()).status == FEEDLANE_END);
}

// promise: dispatch-least-loaded
TEST_CASE("very short tasks that workers take from each other are not lost, not made twice and not declined") {
  Setup s(20'000);
  s.config.prefetch_factor = 16;
  const Loader l = s.workers(3).create();
  check_sequence(take_epoch(l.get(), 0), 20'000, 1);
  const feedlane_stats stats = stats_of(l.get());
  CHECK(stats.invalid_results == 0);
  CHECK(stats.restarts == 0);
  CHECK(stats.redispatched == 0);
}

// promise: dispatch-round-robin
TEST_CASE("with round-robin dispatch each batch waits for its own worker, also for a stuck one") {
  Stuck stuck;
  stuck.s.config.dispatch = FEEDLANE_DISPATCH_ROUND_ROBIN;
  const Loader l = stuck.s.create();
  begin(l.get(), 0);
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    return made(l.get(), 4) == samples / 4 * 3;
  }));
  stuck.gate.open();
  const std::vector<Taken> all = take_rest(l.get());
  check_sequence(all, samples, 1);
  for (const Taken& t : all) CHECK(t.worker == t.batch % 4);
  CHECK(made(l.get(), 4) == samples);
}

// promise: dispatch-least-loaded
TEST_CASE("an idle worker takes the tasks of a worker that is still starting") {
  int never[2] = {-1, -1};
  REQUIRE(::pipe(never) == 0);
  const Gate gate;
  Setup s(6);
  s.plan.stuck_fd = never[0];  // all that comes to worker 0, while worker 1 opens its data set
  s.plan.stuck_index = 0;
  s.plan.stuck_count = 6;
  s.plan.stuck_worker = 0;
  s.plan.gate_fd = gate.fd();
  s.plan.gate_open = 2;
  s.workers(3).config.prefetch_factor = 1;
  s.config.out_of_order = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  std::vector<Taken> taken;
  for (int i = 0; i < 5; i++) {
    taken.push_back(take(l.get()));
    REQUIRE(taken.back().status == FEEDLANE_OK);
    CHECK(taken.back().worker == 2);
  }
  gate.open();
  for (int i = 0; i < 6; i++) REQUIRE(::write(never[1], "", 1) == 1);
  CHECK(take_rest(l.get()).size() == 1);
  for (const int fd : never) (void)::close(fd);
}

// promise: dispatch-least-loaded
TEST_CASE("a worker that became ready while the trainer was busy gets the task that waits behind a stuck sample") {
  for (const bool is_armed : {false, true}) {
    CAPTURE(is_armed);
    int never[2] = {-1, -1};
    REQUIRE(::pipe(never) == 0);
    const Gate gate;
    Setup s(20);
    s.plan.stuck_fd = never[0];
    s.plan.stuck_index = 0;
    s.plan.gate_fd = gate.fd();
    s.plan.gate_open = 2;
    s.workers(2).config.prefetch_factor = 2;
    s.config.out_of_order = 1;
    const Loader l = s.create();
    begin(l.get(), 0);
    // Worker 0 makes all but what worker 1 was sent, and takes that over when nothing else is left.
    for (int i = 0; i < 18; i++) {
      const Taken t = take(l.get());
      REQUIRE(t.status == FEEDLANE_OK);
      CHECK(t.worker == 0);
      CHECK(t.batch != 0);
    }
    CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
    REQUIRE(eventually([&] { return worker_of(l.get(), 0).batch == 0; }));
    gate.open();  // worker 1 declines its tasks and sleeps, which the trainer does not see yet
    const auto pid = static_cast<pid_t>(worker_of(l.get(), 1).pid);
    REQUIRE(eventually([&] { return state_of(pid) == 'S'; }));
    int fd = -1;
    while (is_armed) {
      const std::int32_t armed = feedlane_loader_arm(l.get(), &fd);
      if (armed == FEEDLANE_OK) REQUIRE(wait_readable(fd));
      if (feedlane_loader_poll(l.get(), nullptr) == FEEDLANE_AGAIN) break;
    }
    const Taken behind = take(l.get());
    REQUIRE(behind.status == FEEDLANE_OK);
    CHECK(behind.worker == 1);
    REQUIRE(::write(never[1], "", 1) == 1);
    const std::vector<Taken> rest = take_rest(l.get());
    REQUIRE(rest.size() == 1);
    CHECK(rest[0].batch == 0);
    for (const int end : never) (void)::close(end);
  }
}
