// SPDX-License-Identifier: Apache-2.0
// Workers that die: nothing is lost, nothing comes twice.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

std::vector<feedlane_field> told_by_worker() {
  return {field("index", int64_type), field("attempt", int64_type), field("seed", uint64_type),
          field("pid", int64_type)};
}

// The epoch's batches with one worker's death at sample 9, in batch 4.
void check_after_death(const std::vector<Taken>& taken) {
  check_sequence(taken, 30, 2);
  for (const Taken& t : taken)
    for (std::size_t row = 0; row < t.indices.size(); row++) {
      CHECK(t.value("attempt", row) == t.attempt);
      CHECK(t.seed(row) == feedlane_row_seed(99, 0, t.indices[row]));
    }
  REQUIRE(taken.size() == 15);
  CHECK(taken[4].attempt == 1);
}

}  // namespace

// promise: seed-after-crash, fault-worker-dies, worker-busy-dies
TEST_CASE("a batch whose worker is killed is made again as the next attempt, and no batch is lost or repeated") {
  struct Death {
    const char* how;
    int signal;
  };
  for (const Death& death : {Death{"SIGKILL", SIGKILL}, {"SIGSEGV", SIGSEGV}, {"SIGABRT", SIGABRT}, {"exit", 0}})
    for (const char* form : {"get", "pull"}) {
      CAPTURE(std::string(death.how));
      CAPTURE(std::string(form));
      Setup s(30, 2);
      s.workers(2, form).fields(told_by_worker());
      s.plan.end_index = 9;
      s.plan.end_attempts = 1;
      s.plan.end_signal = death.signal;
      const Loader l = s.create();
      check_after_death(take_epoch(l.get(), 0));
      const feedlane_stats stats = stats_of(l.get());
      CHECK(stats.restarts == 1);
      CHECK(stats.redispatched >= 1);
      CHECK(stats.redispatched <= 2);
      CHECK(stats.quarantined == 0);
      CHECK(stats.invalid_results == 0);
      CHECK(worker_of(l.get(), 0).generation + worker_of(l.get(), 1).generation == 1);
    }
}

// promise: torch-segfault
TEST_CASE("a segmentation fault in a worker is reported as SIGSEGV, with the batch in progress") {
  for (const char* form : {"get", "pull"}) {
    CAPTURE(std::string(form));
    Setup s(30, 2);
    s.workers(2, form).fields(told_by_worker());
    s.plan.end_index = 9;
    s.plan.end_attempts = 1;
    s.plan.end_signal = SIGSEGV;
    const Loader l = s.create();
    check_after_death(take_epoch(l.get(), 0));
    const std::vector<feedlane_event> deaths = events_of(l.get(), FEEDLANE_EVENT_WORKER_DIED);
    REQUIRE(deaths.size() == 1);
    CHECK(std::string(deaths[0].what.text).find("was killed by signal 11 (SIGSEGV)") != std::string::npos);
    CHECK(deaths[0].what.worker >= 0);
    CHECK(deaths[0].what.epoch == 0);
    CHECK(deaths[0].what.batch == 4);
  }
}

// promise: torch-segfault
TEST_CASE("the death of a worker in its first batch is reported with that batch") {
  Setup s(4);
  s.workers(1);
  s.plan.end_index = 0;
  s.plan.end_attempts = 1;
  s.plan.end_signal = SIGKILL;
  const Loader l = s.create();
  check_sequence(take_epoch(l.get(), 0), 4, 1);
  const std::vector<feedlane_event> deaths = events_of(l.get(), FEEDLANE_EVENT_WORKER_DIED);
  REQUIRE(deaths.size() == 1);
  CHECK(deaths[0].what.epoch == 0);
  CHECK(deaths[0].what.batch == 0);
}

// promise: fault-worker-dies
TEST_CASE("out of order, a killed worker is replaced even if next never has to wait") {
  Setup s(400);
  s.workers(2).fields(told_by_worker());
  s.config.out_of_order = 1;
  const Gate gate;
  const Reports reports;
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = -2;
  s.plan.report_fd = reports.fd();
  const Loader l = s.create();
  begin(l.get(), 0);
  wait_until_ready(l.get(), 2);
  const auto dead = static_cast<pid_t>(worker_of(l.get(), 1).pid);
  // With a task in hand: one without a task is not missed while the other suffices.
  for (std::optional<Report> r; !r || r->pid != dead;) REQUIRE((r = reports.wait_for(Report::began)));
  REQUIRE(::kill(dead, SIGKILL) == 0);
  REQUIRE(eventually([&] { return !is_running(dead); }));
  gate.open();
  // From here on a result is there whenever next is called.
  std::uint64_t from_living = 0;
  while (stats_of(l.get()).restarts == 0 && stats_of(l.get()).batches < 300) {
    // The dead one may look idle, and be given what waits behind this one's task; then a look of the trainer's is needed.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (worker_of(l.get(), 0).tasks <= from_living && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    const Taken t = take(l.get());
    REQUIRE(t.status == FEEDLANE_OK);
    if (t.worker == 0) from_living++;
  }
  CHECK(stats_of(l.get()).restarts == 1);
  const std::uint64_t before = stats_of(l.get()).batches;
  CHECK(before < 300);
  CHECK(take_outcomes(l.get()).size() == 400 - before);
}

// promise: fault-worker-dies
TEST_CASE("batches that a killed worker has committed are kept, and only its later batches are made again") {
  Setup s(6);
  s.workers(1).fields(told_by_worker());
  s.config.prefetch_factor = 4;
  const Reports reports;
  s.plan.report_fd = reports.fd();
  s.plan.end_index = 2;
  s.plan.end_attempts = 1;
  s.plan.end_signal = SIGKILL;
  const Loader l = s.create();
  begin(l.get(), 0);
  auto r = reports.wait_for(Report::began);
  while (r && r->index != 2) r = reports.wait_for(Report::began);
  REQUIRE(r);
  const auto first = static_cast<pid_t>(r->pid);
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);  // or the next two would be sent to the dead one
    return stats_of(l.get()).restarts == 1;
  }));
  const std::vector<Taken> taken = take_rest(l.get());
  check_sequence(taken, 6, 1);
  const std::vector<std::int32_t> attempts{0, 0, 1, 1, 0, 0};
  for (std::size_t i = 0; i < 6; i++) {
    CHECK(taken[i].attempt == attempts[i]);
    CHECK((taken[i].value("pid") == first) == (i < 2));
  }
  CHECK(stats_of(l.get()).redispatched == 2);
}

// promise: fault-any-moment
TEST_CASE("no batch is lost when workers are killed from outside again and again") {
  Setup s(60);
  s.workers(2).fields(told_by_worker());
  const Loader l = s.create();
  begin(l.get(), 0);
  std::vector<Taken> taken;
  for (int i = 0; i < 5; i++) {
    taken.push_back(take(l.get()));
    REQUIRE(taken.back().status == FEEDLANE_OK);
    const auto pid = static_cast<pid_t>(worker_of(l.get(), i % 2).pid);
    if (pid > 0) (void)::kill(pid, SIGKILL);
  }
  for (Taken& t : take_rest(l.get())) taken.push_back(std::move(t));
  check_sequence(taken, 60, 1);
  CHECK(stats_of(l.get()).restarts >= 1);
  CHECK(stats_of(l.get()).restarts <= 5);
}

// promise: fault-worker-dies
TEST_CASE("when both workers are killed at once, the epoch continues with two new workers") {
  Setup s(20);
  s.workers(2).fields(told_by_worker());
  const Gate gate;
  const Reports reports;
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = -2;
  s.plan.report_fd = reports.fd();
  const Loader l = s.create();
  begin(l.get(), 0);
  std::set<std::int64_t> dead;
  while (dead.size() < 2) {
    const auto r = reports.wait_for(Report::began);
    REQUIRE(r);
    dead.insert(r->pid);
  }
  for (const std::int64_t pid : dead) REQUIRE(::kill(static_cast<pid_t>(pid), SIGKILL) == 0);
  // Were only one gone, what the other still seems to have waiting might be given to the first one's replacement.
  for (const std::int64_t pid : dead) REQUIRE(eventually([&] { return !is_running(static_cast<pid_t>(pid)); }));
  gate.open();
  const std::vector<Taken> taken = take_rest(l.get());
  check_sequence(taken, 20, 1);
  for (const Taken& t : taken) CHECK(dead.count(t.value("pid")) == 0);
  CHECK(stats_of(l.get()).restarts == 2);
  CHECK(stats_of(l.get()).redispatched == 4);
}

// promise: fault-worker-dies, worker-idle-killed
TEST_CASE("a kept worker that is killed between two epochs is replaced in a following epoch") {
  Setup s(8);
  s.workers(2).fields(told_by_worker());
  s.config.keep_workers = 1;
  const Loader l = s.create();
  check_sequence(take_epoch(l.get(), 0), 8, 1);
  const auto pid = static_cast<pid_t>(worker_of(l.get(), 1).pid);
  REQUIRE(::kill(pid, SIGKILL) == 0);
  REQUIRE(eventually([&] {  // else the other one may have made two epochs before it is gone
    (void)feedlane_loader_poll(l.get(), nullptr);
    return worker_of(l.get(), 1).state == FEEDLANE_WORKER_NONE;
  }));
  check_sequence(take_epoch(l.get(), 1), 8, 1);
  check_sequence(take_epoch(l.get(), 2), 8, 1);
  CHECK(worker_of(l.get(), 1).pid != pid);
  CHECK(worker_of(l.get(), 1).pid > 0);
  CHECK(worker_of(l.get(), 1).generation == 1);
}

// promise: fault-reaping-host
TEST_CASE("no batch is lost when a worker is killed while the host ignores SIGCHLD") {
  struct sigaction ignore {};
  struct sigaction before {};
  ignore.sa_handler = SIG_IGN;
  REQUIRE(::sigaction(SIGCHLD, &ignore, &before) == 0);
  {
    Setup s(30, 2);
    s.workers(2).fields(told_by_worker());
    s.plan.end_index = 9;
    s.plan.end_attempts = 1;
    s.plan.end_signal = SIGKILL;
    const Loader l = s.create();
    check_after_death(take_epoch(l.get(), 0));
    CHECK(stats_of(l.get()).restarts == 1);
  }
  REQUIRE(::sigaction(SIGCHLD, &before, nullptr) == 0);
}

namespace {

// The first process waits for the gate, makes five samples and, in the sixth, writes over all of data that it may: its row,
// its lane with the results in it, its slots.
struct Vandal {
  int pattern;  // a byte, or beyond them: the seed of noise
  std::int32_t generation = -1;
  bool done = false;
  int gate_fd = -1, report_fd = -1;

  static std::int32_t open(void* user_data, const feedlane_worker_info* info, void** self, feedlane_error*) {
    static_cast<Vandal*>(user_data)->generation = info->generation;
    *self = user_data;
    return FEEDLANE_OK;
  }
  // Which AddressSanitizer would rightly report.
  __attribute__((no_sanitize("address"))) static void spoil(unsigned char* from, std::uint64_t bytes, int pattern) {
    std::minstd_rand noise(static_cast<unsigned>(pattern));
    for (std::uint64_t i = 0; i < bytes; i++)
      from[i] = static_cast<unsigned char>(pattern < 256 ? pattern : static_cast<int>(noise() >> 8));
  }

  static std::int32_t get(void* self, const feedlane_row* row, feedlane_error*) {
    auto& vandal = *static_cast<Vandal*>(self);
    if (vandal.generation == 0 && row->index == 0) (void)wait_readable(vandal.gate_fd);
    std::memcpy(row->fields[0], &row->index, sizeof row->index);
    if (vandal.generation != 0 || vandal.done || row->index != 5) return FEEDLANE_OK;
    vandal.done = true;
    constexpr std::uint64_t header = 128;  // the trainer's
    const feedlane_tensor& t = row->task->tensors[0];
    auto* const data = static_cast<unsigned char*>(t.data) - t.offset;
    spoil(data + header, t.offset - header, vandal.pattern);
    send_report(vandal.report_fd, {Report::closed, ::getpid(), 5, 5, 0, 0});
    return FEEDLANE_OK;
  }
};

}  // namespace

// promise: fault-garbage, worker-bad-result
TEST_CASE("with a deadline, a worker that writes garbage over its row, lane and slots can only make batches fail") {
  std::uint64_t restarts = 0;
  for (const int pattern : {0x00, 0x01, 0x7f, 0x80, 0xff, 256, 257, 258, 259, 260, 261, 262}) {
    CAPTURE(pattern);
    const Gate gate;
    const Reports reports;
    Vandal vandal{pattern};
    vandal.gate_fd = gate.fd();
    vandal.report_fd = reports.fd();
    auto table = fresh<feedlane_dataset>();
    table.user_data = &vandal;
    table.open = Vandal::open;
    table.get = Vandal::get;
    Setup s(20);
    s.forked(1, table).fields({field("index", int64_type)});
    s.config.prefetch_factor = 8;
    s.config.task_timeout_ns = 300'000'000;
    s.config.keep_workers = 1;
    const Loader l = s.create();
    begin(l.get(), 0);
    wait_until_ready(l.get(), 1);
    gate.open();
    REQUIRE(reports.wait_for(Report::closed));
    std::set<std::int64_t> seen;
    for (const Taken& t : take_outcomes(l.get())) {
      CHECK_MESSAGE(seen.insert(t.batch).second, "once");
      if (t.status != FEEDLANE_OK) CHECK(t.worker == 0);
      else CHECK(t.bytes[0].size() == 8);
    }
    CHECK(seen.size() == 20);
    for (const feedlane_event& e : events_of(l.get(), FEEDLANE_EVENT_INVALID)) CHECK(e.what.worker == 0);
    restarts += stats_of(l.get()).restarts;
    check_sequence(take_epoch(l.get(), 1), 20, 1);
  }
  CHECK_MESSAGE(restarts > 0, "not all of it was harmless");
}
