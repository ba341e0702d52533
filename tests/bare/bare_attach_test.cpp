// SPDX-License-Identifier: Apache-2.0
// What a bare worker says when it can't attach, and what others leave behind for it: memory given back, writes over data.
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "bare/bare_trainer.hpp"
#include "support/process.hpp"

using namespace feedlane::test;

namespace {

constexpr const char* not_controls = "bare worker: data's inode is ";  // why an impostor can't attach

std::unique_ptr<Process> start_external(feedlane_loader* l, const char* form) {
  std::int32_t id = -1;
  int fd = -1;
  REQUIRE(feedlane_loader_open_worker(l, &id, &fd, nullptr) == FEEDLANE_OK);
  auto process = std::make_unique<Process>(BARE_WORKER, form, fd);
  REQUIRE(::close(fd) == 0);
  return process;
}

bool says(const feedlane_event& event, const std::string& words) {
  return std::string(event.what.text).find(words) != std::string::npos;
}

// By worker process: slots that it had a task with, and how often it reserved memory of each.
struct Slots {
  std::set<std::int64_t> used;
  std::map<std::int64_t, int> reserved;
};

std::map<std::int64_t, Slots> slots_of(const BareReports& reports) {
  std::map<std::int64_t, Slots> all;
  for (auto r = reports.next(0); r; r = reports.next(0)) {
    if (r->what == report_began) all[r->pid].used.insert(r->slot);
    if (r->what == report_reserved) all[r->pid].reserved[r->slot]++;
  }
  return all;
}

void check_reserved_once(const Slots& slots) {
  for (const std::int64_t slot : slots.used) {
    CAPTURE(slot);
    CHECK(slots.reserved.count(slot) == 1);
  }
  for (const auto& reserved : slots.reserved) {
    const std::int64_t slot = reserved.first;
    CAPTURE(slot);
    CHECK(reserved.second == 1);
  }
}

}  // namespace

// promise: worker-cant-attach
TEST_CASE("a bare worker refuses a data segment that is not the control segment's, and the error has the reason") {
  Bare b(4, 1, 1);
  b.s.argv = {BARE_WORKER, "impostor", nullptr};
  const Loader l = b.create();
  begin(l.get(), 0);
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_INIT);
  CHECK_MESSAGE(e.says("before it attached (5 times in a row): "), std::string(e.text));
  CHECK_MESSAGE(e.says(not_controls), std::string(e.text));
  const std::vector<feedlane_event> deaths = events_of(l.get(), FEEDLANE_EVENT_WORKER_DIED);
  REQUIRE(!deaths.empty());
  for (const feedlane_event& event : deaths) CHECK_MESSAGE(says(event, not_controls), std::string(event.what.text));
}

TEST_CASE("if a bare worker can't read its configuration, the trainer's error has the reason") {
  Bare b(4, 1, 1);
  b.s.connect();
  b.s.config.worker_config = &b.o;
  b.s.config.worker_config_bytes = 8;
  feedlane_loader* loader = nullptr;
  REQUIRE(feedlane_loader_create(&b.s.config, &loader, nullptr) == FEEDLANE_OK);
  const Loader l(loader);
  begin(l.get(), 0);
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_INIT);
  CHECK_MESSAGE(e.says("bare worker: size of the orders is 0x8, needs "), std::string(e.text));
}

// promise: worker-external-cant-attach
TEST_CASE("if an external bare worker can't attach, the event has the reason, and another worker takes its place") {
  for (const bool stays : {false, true}) {
    CAPTURE(stays);
    Bare b(12, 2, 1);
    b.s.argv.clear();
    b.s.external(1);
    Loader l = b.create();
    const auto impostor = start_external(l.get(), stays ? "impostor-stays" : "impostor");
    const auto pidfd = static_cast<int>(::syscall(SYS_pidfd_open, impostor->pid(), 0));
    REQUIRE(pidfd >= 0);
    begin(l.get(), 0);
    Error e;
    CHECK(take(l.get(), &e).status == FEEDLANE_E_PEER_DEAD);
    const std::vector<feedlane_event> events = events_of(l.get());
    const auto told = [&](std::int32_t kind) {
      for (const feedlane_event& event : events)
        if (event.kind == kind && says(event, not_controls)) return true;
      return false;
    };
    CHECK(told(FEEDLANE_EVENT_WORKER_DIED));
    CHECK(told(FEEDLANE_EVENT_WORKER_WANTED));
    const auto process = start_external(l.get(), "");
    check_epoch(take_rest(l.get()), 12, 2, 0);
    CHECK(stats_of(l.get()).invalid_results == 0);
    l.reset();
    if (stays) CHECK_MESSAGE(!wait_readable(pidfd, 200'000'000), "it untied itself: nobody kills it");
    else CHECK(impostor->wait() == (1 << 8));  // it exits with 1
    (void)::close(pidfd);
  }
}

// promise: worker-overwrites-segment
TEST_CASE("bare workers attach and work even if other workers overwrite the first 128 bytes of the data segment") {
  Bare b(40, 2, 2);
  b.s.config.keep_workers = 1;
  b.o.scribbles = 1;
  b.o.at_step = 9;
  b.o.at_task = 1;
  b.o.signal = SIGKILL;
  const Loader l = b.create();
  for (std::int64_t epoch = 0; epoch < 2; epoch++) check_epoch(take_epoch(l.get(), epoch), 40, 2, epoch);
  CHECK(stats_of(l.get()).restarts >= 1);
  CHECK(stats_of(l.get()).invalid_results == 0);
}

// promise: worker-grown-slots
TEST_CASE("a bare worker reserves a slot's memory once, and again only after a worker's death has released it") {
  const BareReports reports;
  Bare b(60, 4, 2);
  b.s.config.keep_workers = 1;
  b.s.config.dispatch = FEEDLANE_DISPATCH_ROUND_ROBIN;  // each worker makes batches, however quick the other one is
  b.o.reports = reports.fd();
  b.o.shaped = 2;
  b.o.wide_bytes = 5000;  // beyond what is reserved of a slot from the start
  const Loader l = b.create();
  for (std::int64_t epoch = 0; epoch < 4; epoch++) CHECK(take_epoch(l.get(), epoch).size() == 15);
  const std::map<std::int64_t, Slots> before = slots_of(reports);
  CHECK(before.size() == 2);
  for (const auto& [pid, slots] : before) check_reserved_once(slots);
  const auto survivor = static_cast<pid_t>(worker_of(l.get(), 0).pid);
  REQUIRE(::kill(static_cast<pid_t>(worker_of(l.get(), 1).pid), SIGKILL) == 0);
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    return !events_of(l.get(), FEEDLANE_EVENT_WORKER_DIED).empty();
  }));
  for (std::int64_t epoch = 4; epoch < 8; epoch++) CHECK(take_epoch(l.get(), epoch).size() == 15);
  CHECK(worker_of(l.get(), 0).pid == survivor);
  const std::map<std::int64_t, Slots> after = slots_of(reports);
  REQUIRE(after.count(survivor) == 1);
  CHECK(after.size() == 2);
  for (const auto& [pid, slots] : after) check_reserved_once(slots);
  CHECK(stats_of(l.get()).invalid_results == 0);
}
