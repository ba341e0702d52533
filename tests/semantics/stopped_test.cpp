// SPDX-License-Identifier: Apache-2.0
// 7. Faults: a trainer that is stopped together with its workers, by Ctrl-Z, a freezer or a debugger, and goes on: the time
// that nobody had is nobody's fault.
#include <doctest/doctest.h>
#include <time.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr std::int64_t millisecond = 1'000'000;
constexpr std::int64_t samples = 12;

void pass(std::int64_t ns) {
  const timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
  (void)::nanosleep(&t, nullptr);
}

void stop(pid_t pid) {
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  REQUIRE(eventually([&] { return state_of(pid) == 'T'; }));
}

std::int32_t worker_state(const Loader& l, std::int32_t worker) {
  auto stats = fresh<feedlane_worker_stats>();
  return observe(l.get(), feedlane_monitor_get_worker_stats, worker, &stats) == FEEDLANE_OK ? stats.state : -1;
}

struct Case {
  const char* name;
  std::int64_t timeout_ns;     // of a task
  std::int64_t stopped_ns;     // for how long
  std::int64_t unfinished_ns;  // how much longer both samples take
  bool looks_away;             // the trainer is somewhere else than in `next` when it is stopped
};

// A stop ends a wait with INTERRUPTED, like any signal.
std::int32_t next(const Loader& l, feedlane_batch& batch) {
  std::int32_t s = FEEDLANE_INTERRUPTED;
  while (s == FEEDLANE_INTERRUPTED) s = feedlane_loader_next(l.get(), patience_ns, &batch, nullptr);
  return s;
}

// Two workers are busy, each with a sample that takes until the gate opens.
void check(const Case& o) {
  Gate gate;
  const Gate back;
  const Reports reports;
  Child trainer({gate.fd(), back.fd(), reports.fd()}, [&](Findings& f) {
    Setup s(samples);
    s.plan.gate_fd = gate.fd();
    s.plan.gate_index = -2;
    s.plan.report_fd = reports.fd();
    s.config.task_timeout_ns = o.timeout_ns;
    Loader l;
    EXPECT(f, s.workers(2).try_create(l, nullptr) == FEEDLANE_OK);
    EXPECT(f, feedlane_loader_begin(l.get(), 0, nullptr) == FEEDLANE_OK);
    auto batch = fresh<feedlane_batch>();
    // Deadlines begin when it has heard that they are ready.
    while (feedlane_loader_next(l.get(), millisecond, &batch, nullptr) == FEEDLANE_TIMEOUT)
      if (worker_state(l, 0) == FEEDLANE_WORKER_READY && worker_state(l, 1) == FEEDLANE_WORKER_READY) break;
    send_report(reports.fd(), {Report::closed, ::getpid(), 0, 0, 0, 0});
    if (o.looks_away) EXPECT(f, wait_readable(back.fd()));
    for (std::int64_t i = 0; i < samples; i++) {
      EXPECT(f, next(l, batch) == FEEDLANE_OK);
      EXPECT(f, batch.batch == i);
      EXPECT(f, batch.attempt == 0);
      EXPECT(f, feedlane_batch_release(l.get(), batch.token) == FEEDLANE_OK);
    }
    EXPECT(f, next(l, batch) == FEEDLANE_END);
    auto stats = fresh<feedlane_stats>();
    EXPECT(f, observe(l.get(), feedlane_monitor_get_stats, &stats) == FEEDLANE_OK);
    EXPECT(f, stats.hung == 0);
    EXPECT(f, stats.restarts == 0);
  });
  std::vector<pid_t> pids;
  for (bool is_ready = false; pids.size() < 2 || !is_ready;) {
    const auto report = reports.next();
    REQUIRE(report);
    if (report->what == Report::began) pids.push_back(static_cast<pid_t>(report->pid));
    is_ready = is_ready || report->what == Report::closed;
  }
  REQUIRE(eventually([&] { return state_of(trainer.pid()) == 'S'; }));
  for (const pid_t worker : pids) stop(worker);
  stop(trainer.pid());
  pass(o.stopped_ns);
  if (o.unfinished_ns == 0) gate.open();
  if (o.looks_away) back.open();
  REQUIRE(::kill(trainer.pid(), SIGCONT) == 0);
  for (const pid_t worker : pids) REQUIRE(::kill(worker, SIGCONT) == 0);
  if (o.unfinished_ns != 0) {
    pass(o.unfinished_ns);
    gate.open();
  }
  CHECK(trainer.finish() == "");
}

}  // namespace

// promise: fault-all-stopped, trainer-stopped
TEST_CASE("no worker counts as hung when trainer and workers are stopped for longer than the deadline") {
  // It knows that it hasn't looked for half of the deadline, in `next` or elsewhere, and every worker has its whole time
  // again.
  for (const Case& o : {Case{"in next", 300 * millisecond, 700 * millisecond, 0, false},
                        {"in next, with work left", 1000 * millisecond, 1500 * millisecond, 500 * millisecond, false},
                        {"in next, hardly longer", 1000 * millisecond, 1040 * millisecond, 400 * millisecond, false},
                        {"elsewhere, with work left", 1000 * millisecond, 1500 * millisecond, 500 * millisecond, true},
                        {"elsewhere", 300 * millisecond, 700 * millisecond, 0, true},
                        {"elsewhere, for long", 300 * millisecond, 1500 * millisecond, 0, true}}) {
    CAPTURE(std::string(o.name));
    check(o);
  }
}
