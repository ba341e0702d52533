// SPDX-License-Identifier: Apache-2.0
// 7. Faults: a worker that hangs is named, killed and replaced, and its batch comes all the same.
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr std::int64_t millisecond = 1'000'000;

// Returns when it has stopped.
void stop(pid_t pid) {
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  REQUIRE(eventually([&] { return state_of(pid) == 'T'; }));
}

// The first event of this kind, or none.
bool find_event(feedlane_loader* l, std::int32_t kind, feedlane_event& found) {
  found = fresh<feedlane_event>();
  while (feedlane_loader_event(l, &found) == FEEDLANE_OK)
    if (found.kind == kind) return true;
  return false;
}

}  // namespace

// promise: fault-hung-worker, worker-no-progress
TEST_CASE("a worker that hangs in a sample is reported with batch and sample, killed and replaced; no batch is lost") {
  Gate gate;
  Setup s(12, 2);
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = 5;
  s.config.task_timeout_ns = 200 * millisecond;
  const Loader l = s.workers(2).create();
  begin(l.get(), 0);
  std::vector<Taken> all;
  for (int i = 0; i < 2; i++) all.push_back(take(l.get()));
  wait_until_ready(l.get(), 2);
  // The first two that come to sample 5 hang; the third one's gate is open.
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    return stats_of(l.get()).hung == 2;
  }));
  gate.open();
  for (Taken& t : take_rest(l.get())) all.push_back(std::move(t));
  check_sequence(all, 12, 2);
  CHECK(all[2].attempt == 2);
  CHECK(stats_of(l.get()).hung == 2);
  CHECK(stats_of(l.get()).restarts == 2);
  feedlane_event e;
  REQUIRE(find_event(l.get(), FEEDLANE_EVENT_WORKER_HUNG, e));
  CHECK(e.what.code == FEEDLANE_E_HUNG);
  CHECK(e.what.worker >= 0);
  CHECK(e.what.epoch == 0);
  CHECK(e.what.batch == 2);
  CHECK(e.what.sample == 5);
  CHECK(e.what.found >= e.what.needed);
  CHECK(e.what.needed == 200 * millisecond);
  CHECK(std::string(e.what.text).find("state") != std::string::npos);
}

// promise: fault-hung-worker
TEST_CASE("the deadline of an idle worker starts with its next task") {
  Setup s(4);
  s.workers(1).config.keep_workers = 1;
  s.config.task_timeout_ns = 1000 * millisecond;
  const Loader l = s.create();
  check_sequence(take_epoch(l.get(), 0), 4, 1);
  const auto idle_until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  while (std::chrono::steady_clock::now() <
         idle_until) {  // the trainer is there all the time, so there is nothing to excuse
    (void)feedlane_loader_poll(l.get(), nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  begin(l.get(), 1);
  (void)feedlane_loader_poll(l.get(), nullptr);
  check_sequence(take_rest(l.get()), 4, 1);
  CHECK(stats_of(l.get()).hung == 0);
  CHECK(stats_of(l.get()).restarts == 0);
}

// promise: fault-hung-worker
TEST_CASE("a worker that is stopped by a signal is replaced, whether busy or idle") {
  for (const bool idle : {false, true}) {
    CAPTURE(idle);
    Gate gate;
    Setup s(40);
    s.plan.gate_fd = gate.fd();
    s.plan.gate_index = idle ? -1 : 3;
    s.config.task_timeout_ns = 200 * millisecond;
    s.config.keep_workers = 1;
    const Loader l = s.workers(2).create();
    std::vector<std::pair<std::int32_t, pid_t>> stopped;
    const auto stop_worker = [&](std::int32_t w) {
      stopped.emplace_back(w, static_cast<pid_t>(worker_of(l.get(), w).pid));
      stop(stopped.back().second);
    };
    if (idle) {
      check_sequence(take_epoch(l.get(), 0), 40, 1);
      wait_until_ready(l.get(), 2);  // of one that is still starting, as far as is known, all tasks go to others
      stop_worker(1);
    } else {
      begin(l.get(), 1);
      wait_until_ready(l.get(), 2);
      for (std::int32_t w = 0; w < 2; w++) stop_worker(w);
      gate.open();
    }
    const std::vector<Taken> all = idle ? take_epoch(l.get(), 1) : take_rest(l.get());
    check_sequence(all, 40, 1);
    CHECK(stats_of(l.get()).hung == stopped.size());
    for (const auto& entry : stopped) {
      const std::int32_t w = entry.first;
      const pid_t old = entry.second;
      CAPTURE(w);
      CHECK_MESSAGE(eventually([&] {
                      (void)feedlane_loader_poll(l.get(), nullptr);
                      return worker_of(l.get(), w).pid > 0 && worker_of(l.get(), w).pid != old && !is_running(old);
                    }),
                    "another process is there in its place");
    }
    CHECK(stats_of(l.get()).restarts == stopped.size());
  }
}

// promise: fault-hung-worker
TEST_CASE("only a batch that hangs every worker is quarantined; its error names the deadline and the use of fork") {
  for (const bool forked : {false, true}) {
    CAPTURE(forked);
    Gate gate;
    Setup s(6);
    s.plan.gate_fd = gate.fd();
    s.plan.gate_index = 3;
    s.config.task_timeout_ns = 100 * millisecond;
    s.config.max_kills_per_batch = 2;
    if (forked) s.forked(1, s.dataset);
    else s.workers(1);
    const Loader l = s.create();
    begin(l.get(), 0);
    for (std::int64_t i = 0; i < 6; i++) {
      Error e;
      const Taken t = take(l.get(), &e);
      CHECK(t.status == (i == 3 ? FEEDLANE_E_QUARANTINED : FEEDLANE_OK));
      CHECK((i == 3 ? e.batch : t.batch) == i);
      if (i != 3) continue;
      CHECK_MESSAGE(e.says("missed config.task_timeout_ns (100 ms) and was killed"), std::string(e.text));
      CHECK(e.says("a lock that another thread of the trainer held: spawn workers") == forked);
    }
    CHECK(take(l.get()).status == FEEDLANE_END);
    CHECK(stats_of(l.get()).hung == 2);
    for (const feedlane_event& death : events_of(l.get(), FEEDLANE_EVENT_WORKER_DIED))
      CHECK(std::string(death.what.text).find("missed config.task_timeout_ns") != std::string::npos);
  }
}

// promise: fault-hung-worker, trainer-rare-calls
TEST_CASE("a worker that makes progress isn't hung, even if the trainer's calls are further apart than the deadline") {
  const Gate gate;
  const Reports reports;
  Setup s(24);
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = 7;
  s.plan.report_fd = reports.fd();
  s.config.task_timeout_ns = 1000 * millisecond;
  s.config.prefetch_factor = 4;
  const Loader l = s.workers(1).create();
  begin(l.get(), 0);
  std::vector<Taken> all;
  while (all.size() < 7) all.push_back(take(l.get()));
  for (auto r = reports.wait_for(Report::began); r && r->index != 7;) r = reports.wait_for(Report::began);
  ::usleep(1'300'000);  // a training step, longer than the deadline; the worker has had its task in hand for all of it
  CHECK_MESSAGE(take(l.get(), nullptr, millisecond).status == FEEDLANE_TIMEOUT,
                "it has the rest of its time from now on");
  gate.open();
  while (all.size() < 24) all.push_back(take(l.get()));
  check_sequence(all, 24, 1);
  CHECK(stats_of(l.get()).hung == 0);
}

// promise: start-threads, fault-hung-worker, thread-no-progress
TEST_CASE("another thread makes the batches of a hung thread, and the hung thread's slot is free once it answers") {
  Gate gate;
  Setup s(10);
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = 2;
  s.external(2).config.start = FEEDLANE_START_THREAD;
  s.config.task_timeout_ns = 100 * millisecond;
  s.config.held = 3;
  s.connect();
  s.config.dataset = &s.dataset;
  feedlane_loader* made = nullptr;
  REQUIRE(feedlane_loader_create(&s.config, &made, nullptr) == FEEDLANE_OK);
  Loader l(made);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; i++) threads.emplace_back([&] { (void)feedlane_worker_run(-1, l.get(), nullptr, nullptr); });
  begin(l.get(), 0);
  std::vector<Taken> all;
  for (int i = 0; i < 2; i++) all.push_back(take(l.get()));
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    return stats_of(l.get()).hung >= 1;
  }));
  gate.open();
  for (Taken& t : take_rest(l.get())) all.push_back(std::move(t));
  check_sequence(all, 10, 1);
  REQUIRE(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
  for (std::thread& t : threads) t.join();
  CHECK(stats_of(l.get()).slots_free == stats_of(l.get()).slots);
}

// promise: start-threads
TEST_CASE("tasks queued for a hung thread are dropped when their epoch is abandoned") {
  int never[2] = {-1, -1};
  REQUIRE(::pipe(never) == 0);
  Reports reports;
  Setup s(40);
  s.plan.report_fd = reports.fd();
  s.plan.stuck_fd = never[0];
  s.plan.stuck_index = 0;
  s.external(2).config.start = FEEDLANE_START_THREAD;
  s.config.task_timeout_ns = 100 * millisecond;
  s.config.prefetch_factor = 3;
  s.connect();
  s.config.dataset = &s.dataset;
  feedlane_loader* made = nullptr;
  REQUIRE(feedlane_loader_create(&s.config, &made, nullptr) == FEEDLANE_OK);
  const Loader l(made);
  std::vector<std::thread> threads;
  const auto run = [&] { (void)feedlane_worker_run(-1, l.get(), nullptr, nullptr); };
  threads.emplace_back(run);
  wait_until_ready(l.get(), 1);
  begin(l.get(), 0);  // all three of its tasks, of which it begins the first one
  REQUIRE(reports.wait_for(Report::began));
  begin(l.get(), 1);
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    return stats_of(l.get()).hung == 1;
  }));
  Error e;
  threads.emplace_back(run);
  // All slots but the one that the hung thread keeps, although its batch is nobody's any more.
  std::vector<Taken> all;
  std::vector<std::uint64_t> held;
  auto b = fresh<feedlane_batch>();
  while (feedlane_loader_next(l.get(), patience_ns, &b, &e) == FEEDLANE_OK) {
    all.push_back(copy_of(b));
    held.push_back(b.token);
  }
  CHECK(e.code == FEEDLANE_SLOTS_HELD);
  CHECK(held.size() == stats_of(l.get()).slots - 1);
  for (const std::uint64_t token : held) CHECK(feedlane_batch_release(l.get(), token) == FEEDLANE_OK);
  for (Taken& t : take_rest(l.get())) all.push_back(std::move(t));
  check_sequence(all, 40, 1);
  REQUIRE(::write(never[1], "", 1) == 1);
  REQUIRE(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
  for (std::thread& t : threads) t.join();
  CHECK(stats_of(l.get()).slots_free == stats_of(l.get()).slots);
  for (const int fd : never) (void)::close(fd);
}
