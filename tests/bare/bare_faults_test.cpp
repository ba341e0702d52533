// SPDX-License-Identifier: Apache-2.0
// The bare worker under revocation, kills and stops, and at its trainer's end. Each batch whole, once, in order.
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bare/bare_trainer.hpp"
#include "support/process.hpp"

using namespace feedlane::test;

namespace {

constexpr std::int64_t millisecond = 1'000'000;
constexpr int steps = 12;  // of docs/layout.md, "A task, from its cell to the bell"

std::uint64_t made(const feedlane_loader* l, std::int32_t workers) {
  std::uint64_t sum = 0;
  for (std::int32_t w = 0; w < workers; w++) sum += worker_of(l, w).samples;
  return sum;
}

std::unique_ptr<Process> start_external(feedlane_loader* l) {
  std::int32_t id = -1;
  int fd = -1;
  REQUIRE(feedlane_loader_open_worker(l, &id, &fd, nullptr) == FEEDLANE_OK);
  auto process = std::make_unique<Process>(BARE_WORKER, "", fd);
  REQUIRE(::close(fd) == 0);
  return process;
}

int pidfd_of(std::int64_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)); }

}  // namespace

TEST_CASE("a slow bare worker declines its queued tasks, other workers make them, and no worker is restarted") {
  for (const std::int32_t workers : {2, 4}) {
    CAPTURE(workers);
    const Gate gate;
    const BareReports reports;
    Bare b(64, 1, workers);
    b.s.config.prefetch_factor = 16;
    b.s.config.keep_workers = 1;
    b.o.gate = gate.fd();
    b.o.reports = reports.fd();
    const Loader l = b.create();
    begin(l.get(), 0);
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(l.get(), nullptr);
      return made(l.get(), workers) ==
             16 * static_cast<std::uint64_t>(workers) - 1;  // the window, but for the slow one
    }));
    gate.open();
    check_epoch(take_rest(l.get()), 64, 1, 0);
    check_epoch(take_epoch(l.get(), 1), 64, 1, 1);
    CHECK(reports.count(report_declined) > 0);
    check_peace(l.get());
  }
}

TEST_CASE("when tasks are taken back from bare workers repeatedly, each batch comes once and no worker is killed") {
  Bare b(3000, 1, 4);
  b.s.config.prefetch_factor = 16;
  b.o.slow_every = 9;
  b.o.slow_us = 500;
  const Loader l = b.create();
  check_epoch(take_epoch(l.get(), 0), 3000, 1, 0);
  check_peace(l.get());
}

TEST_CASE("a bare worker that reads a changing range never declines a task that is left to the worker") {
  Bare b(2000, 1, 2);
  b.s.config.prefetch_factor = 16;
  b.o.range_us = 200;
  const Loader l = b.create();
  check_epoch(take_epoch(l.get(), 0), 2000, 1, 0);
  check_peace(l.get());
}

TEST_CASE("when bare workers are killed before any step of a task, each batch still comes whole, once and in order") {
  for (int at = 1; at <= steps; at++)
    for (const std::int64_t task : {0, 2}) {
      CAPTURE(at);
      CAPTURE(task);
      Bare b(40, 2, 2);
      b.o.at_step = at;
      b.o.at_task = task;
      b.o.signal = SIGKILL;
      const Loader l = b.create();
      check_epoch(take_epoch(l.get(), 0), 40, 2, 0);
      CHECK(stats_of(l.get()).invalid_results == 0);
      CHECK(stats_of(l.get()).restarts >= 1);
    }
}

TEST_CASE("when bare workers are killed at random, each batch still comes whole, once and in order") {
  for (const std::int32_t workers : {1, 2, 4}) {
    CAPTURE(workers);
    Bare b(900, 3, workers);
    b.o.slow_every = 5;
    b.o.slow_us = 100;
    const Loader l = b.create();
    std::mt19937 random(static_cast<unsigned>(workers));
    begin(l.get(), 0);
    std::vector<Taken> all;
    for (;;) {
      Error e;
      Taken t = take(l.get(), &e);
      if (t.status == FEEDLANE_END) break;
      REQUIRE_MESSAGE(t.status == FEEDLANE_OK, std::string(e.text));
      all.push_back(std::move(t));
      if (random() % 16 != 0) continue;
      const auto w = static_cast<std::int32_t>(random() % static_cast<unsigned>(workers));
      if (const std::int64_t pid = worker_of(l.get(), w).pid; pid > 0) (void)::kill(static_cast<pid_t>(pid), SIGKILL);
    }
    check_epoch(all, 900, 3, 0);
    CHECK(stats_of(l.get()).invalid_results == 0);
    CHECK(stats_of(l.get()).restarts > 0);
  }
}

TEST_CASE("other workers make the batches of a stopped bare worker, and a worker that continues is not replaced") {
  for (const int at : {4, 9, 11, 12}) {
    CAPTURE(at);
    Bare b(24, 2, 2);
    b.o.at_step = at;
    b.o.at_task = 1;
    b.o.signal = SIGSTOP;
    b.s.config.task_timeout_ns = 150 * millisecond;
    const Loader l = b.create();
    check_epoch(take_epoch(l.get(), 0), 24, 2, 0);
    CHECK(stats_of(l.get()).invalid_results == 0);
  }
  const BareReports reports;
  Bare b(24, 2, 2);
  b.o.at_step = 9;
  b.o.at_task = 1;
  b.o.signal = SIGSTOP;
  b.o.reports = reports.fd();
  const Loader l = b.create();
  begin(l.get(), 0);
  for (int i = 0; i < 2;) {
    const auto r = reports.next();
    REQUIRE(r);
    if (r->what != report_attached) continue;
    i++;
    if (i == 1) continue;
    // Whoever has stopped goes on; nobody else notices.
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(l.get(), nullptr);
      bool any = false;
      for (std::int32_t w = 0; w < 2; w++) any = any || state_of(static_cast<pid_t>(worker_of(l.get(), w).pid)) == 'T';
      return any;
    }));
  }
  std::vector<Taken> all;
  for (;;) {
    for (std::int32_t w = 0; w < 2; w++)
      if (const std::int64_t pid = worker_of(l.get(), w).pid; pid > 0) (void)::kill(static_cast<pid_t>(pid), SIGCONT);
    Taken t = take(l.get(), nullptr, 20 * millisecond);
    if (t.status == FEEDLANE_END) break;
    if (t.status == FEEDLANE_TIMEOUT) continue;
    REQUIRE(t.status == FEEDLANE_OK);
    all.push_back(std::move(t));
  }
  check_epoch(all, 24, 2, 0);
  check_peace(l.get());
}

TEST_CASE("after abandoned epochs the same bare workers make the next epoch whole") {
  for (const bool iterable : {false, true}) {
    CAPTURE(iterable);
    Bare b(60, 2, 3);
    b.s.config.keep_workers = 1;
    b.s.config.prefetch_factor = 6;
    b.s.config.iterable = iterable ? 1 : 0;
    b.o.shard_samples = 20;
    b.o.slow_every = 3;
    b.o.slow_us = 200;
    const Loader l = b.create();
    for (std::int64_t epoch = 0; epoch < 12; epoch++) {
      begin(l.get(), epoch);
      for (std::int64_t i = 0; i < epoch % 5; i++) CHECK(take(l.get()).status == FEEDLANE_OK);
    }
    const std::vector<Taken> all = take_epoch(l.get(), 12);
    if (!iterable) check_epoch(all, 60, 2, 12);
    CHECK(all.size() == 30);
    check_peace(l.get());
  }
}

TEST_CASE("the replacement of a killed bare worker resumes the shard from its state, or skips the delivered samples") {
  for (const std::int64_t saves : {0, 1}) {
    CAPTURE(saves);
    const BareReports reports;
    Bare b(1, 4, 2);
    b.s.config.iterable = 1;
    b.s.config.deterministic = saves == 0 ? 1 : 0;
    b.o.shard_samples = 42;
    b.o.saves = saves;
    b.o.at_step = 9;
    b.o.at_task = 4;
    b.o.signal = SIGKILL;
    b.o.reports = reports.fd();
    const Loader l = b.create();
    std::vector<std::int64_t> next(2, 0);
    for (const Taken& t : take_epoch(l.get(), 0))
      for (std::size_t row = 0; row < t.count; row++) {
        const std::int64_t n = next[static_cast<std::size_t>(t.worker)]++;
        check_row(t, row, 2 * n + t.worker, feedlane_row_seed(99 + static_cast<std::uint64_t>(t.worker), 0, n));
      }
    CHECK(next == std::vector<std::int64_t>{42, 42});
    CHECK(stats_of(l.get()).restarts == 2);
    CHECK(stats_of(l.get()).invalid_results == 0);
    CHECK(reports.count(report_passed_over) == (saves == 0 ? 2 : 0));
  }
}

TEST_CASE("a bare worker that needs longer than the deadline to skip the delivered samples isn't hung") {
  Bare b(1, 4, 1);
  b.s.config.iterable = 1;
  b.s.config.deterministic = 1;
  b.s.config.task_timeout_ns = 1000 * millisecond;
  b.o.shard_samples = 84;
  b.o.at_step = 9;
  b.o.at_task = 20;
  b.o.signal = SIGKILL;
  b.o.pass_us = 16'000;
  const Loader l = b.create();
  CHECK(take_epoch(l.get(), 0).size() == 21);
  CHECK(stats_of(l.get()).hung == 0);
  CHECK(stats_of(l.get()).restarts == 1);
}

TEST_CASE("the lifeline kills busy, idle and stopped bare workers with their trainer; workers without it exit alone") {
  enum Mode { asleep, busy, stopped, external, untied };
  for (const Mode mode : {asleep, busy, stopped, external, untied}) {
    CAPTURE(static_cast<int>(mode));
    const Gate gate;
    const BareReports reports;
    Child trainer([&](Findings& f) {
      Bare b(8, 1, 1);
      b.s.config.keep_workers = 1;
      b.s.config.prefetch_factor = 8;
      b.s.config.no_lifeline = mode == untied ? 1 : 0;
      b.o.reports = reports.fd();
      b.o.slow_every = 1;  // untied, it looks for its trainer once a millisecond
      b.o.slow_us = 2000;
      if (mode == busy || mode == external || mode == untied) b.o.gate = gate.fd();
      if (mode == stopped) b.o.at_step = 9, b.o.signal = SIGSTOP;
      if (mode == external) b.s.external(1).argv.clear();  // nobody but itself ties it
      const Loader l = b.create();
      std::unique_ptr<Process> process;
      if (mode == external) process = start_external(l.get());
      begin(l.get(), 0);
      if (mode == asleep) EXPECT(f, take_rest(l.get()).size() == 8);
      (void)take(l.get());  // for ever
    });
    const auto r = reports.wait_for(report_began);
    REQUIRE(r);
    const int pidfd = pidfd_of(r->pid);
    REQUIRE(pidfd >= 0);
    if (mode == stopped) REQUIRE(eventually([&] { return state_of(static_cast<pid_t>(r->pid)) == 'T'; }));
    const int trainer_pidfd = pidfd_of(trainer.pid());
    REQUIRE(::kill(trainer.pid(), SIGKILL) == 0);
    CHECK(wait_readable(trainer_pidfd));
    (void)::close(trainer_pidfd);
    if (mode == untied) {
      CHECK_MESSAGE(!wait_readable(pidfd, 0), "it is at its task still");
      gate.open();
    }
    CHECK(wait_readable(pidfd));
    (void)::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);  // whatever it does: nobody else would
    if (mode != asleep) CHECK_MESSAGE(reports.count(report_began) == 0, "it begins no other task");
    (void)::close(pidfd);
  }
}

TEST_CASE("an external bare worker may leave during an epoch and keep running, and another takes its place") {
  const Gate gate;
  Bare b(30, 2, 1);
  b.s.argv.clear();
  b.s.external(1);
  b.o.gate = gate.fd();
  b.o.leave_after = 4;
  const Loader l = b.create();
  std::vector<std::unique_ptr<Process>> processes;
  processes.push_back(start_external(l.get()));
  begin(l.get(), 0);
  std::vector<Taken> all;
  for (;;) {
    Error e;
    Taken t = take(l.get(), &e);
    if (t.status == FEEDLANE_END) break;
    if (t.status == FEEDLANE_E_PEER_DEAD) {  // nobody is left
      processes.push_back(start_external(l.get()));
      continue;
    }
    REQUIRE_MESSAGE(t.status == FEEDLANE_OK, std::string(e.text));
    all.push_back(std::move(t));
  }
  check_epoch(all, 30, 2, 0);
  CHECK(processes.size() == 4);
  for (const auto& p : processes) CHECK(is_running(p->pid()));
  check_peace(l.get());
  gate.open();
  for (std::size_t i = 0; i + 1 < processes.size(); i++) CHECK(processes[i]->wait() == 0);
}

TEST_CASE("a bare worker that breaks a rule of Ready or `shaped` is killed each time, and E_RESTARTS has the reason") {
  struct Case {
    std::int64_t breach;
    const char* why;
  };
  for (const Case& c : {Case{breach_ready_twice, "sent Ready twice"},
                        {breach_ready_positive, "sent Ready with status 1: must be 0 or negative"},
                        {breach_never_ready, "before it sent Ready"},
                        {breach_shaped_bit, "slot.shaped is 8 in the slot"}}) {
    CAPTURE(c.why);
    Bare b(20000, 1, 1);  // more than four lives make, however long it takes until the breach is seen
    b.o.breach = c.breach;
    b.s.config.max_restarts = 3;  // five that end before Ready are E_INIT
    const Loader l = b.create();
    begin(l.get(), 0);
    const std::vector<Taken> all = take_outcomes(l.get());
    REQUIRE(!all.empty());
    CHECK(all.back().status == FEEDLANE_E_RESTARTS);
    CHECK_MESSAGE(all.back().text.find("was killed because it sent invalid data: ") != std::string::npos,
                  all.back().text);
    CHECK_MESSAGE(all.back().text.find(c.why) != std::string::npos, all.back().text);
    for (std::size_t i = 0; i + 1 < all.size(); i++)
      check_row(all[i], 0, static_cast<std::int64_t>(i), feedlane_row_seed(99, 0, static_cast<std::int64_t>(i)));
    CHECK(stats_of(l.get()).restarts_invalid == 3);
    CHECK(stats_of(l.get()).invalid_results == 4);
  }
}
