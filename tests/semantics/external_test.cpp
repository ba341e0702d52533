// SPDX-License-Identifier: Apache-2.0
// Workers that the host starts with a descriptor of open_worker.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/events.hpp"
#include "support/few_descriptors.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

struct Offer {
  std::int32_t status = 0;
  std::int32_t id = -1;
  int fd = -1;
};

Offer open_worker(feedlane_loader* l, std::int32_t id = -1) {
  Offer o;
  o.id = id;
  o.status = feedlane_loader_open_worker(l, &o.id, &o.fd, nullptr);
  return o;
}

// A worker process for whichever place is free.
std::unique_ptr<Process> start(feedlane_loader* l, const char* form = "get") {
  const Offer o = open_worker(l);
  REQUIRE(o.status == FEEDLANE_OK);
  auto process = std::make_unique<Process>(worker_program, form, o.fd);
  REQUIRE(::close(o.fd) == 0);
  return process;
}

// A forked worker that makes so many tasks, detaches in the hands of none, and goes on living until the gate opens.
std::unique_ptr<Child> start_visitor(feedlane_loader* l, int tasks, int gate) {
  const Offer o = open_worker(l);
  REQUIRE(o.status == FEEDLANE_OK);
  auto child = std::make_unique<Child>(std::vector{o.fd, gate}, [&](Findings& f) {
    feedlane_worker* w = nullptr;
    EXPECT(f, feedlane_worker_attach(o.fd, nullptr, patience_ns, &w, nullptr) == FEEDLANE_OK);
    EXPECT(f, feedlane_worker_ready(w, FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
    for (int i = 0; i < tasks; i++) {
      const feedlane_task* task = nullptr;
      EXPECT(f, feedlane_worker_next(w, patience_ns, &task, nullptr) == FEEDLANE_OK);
      std::memcpy(task->tensors[0].data, task->indices, task->count * 8);
      EXPECT(f, feedlane_task_commit(task, task->count, nullptr) == FEEDLANE_OK);
    }
    EXPECT(f, feedlane_worker_destroy(&w) == FEEDLANE_OK);
    EXPECT(f, wait_readable(gate));
  });
  REQUIRE(::close(o.fd) == 0);
  return child;
}

}  // namespace

// promise: start-external, torch-start-modes
TEST_CASE("external: processes that the host has started make the batches, with the get, fetch and pull forms") {
  Setup s(30, 2);
  s.external(3);
  Loader l = s.create();
  std::vector<std::unique_ptr<Process>> processes;
  for (const char* form : {"get", "fetch", "pull"}) processes.push_back(start(l.get(), form));
  CHECK_MESSAGE(open_worker(l.get()).status == FEEDLANE_END, "no worker is missing");
  check_sequence(take_epoch(l.get(), 0), 30, 2);
  wait_until_ready(l.get(), 3);
  for (std::int32_t w = 0; w < 3; w++)
    CHECK(worker_of(l.get(), w).pid == processes[static_cast<std::size_t>(w)]->pid());
  check_sequence(take_epoch(l.get(), 1), 30, 2);
  for (std::int32_t w = 0; w < 3; w++)
    CHECK_MESSAGE(worker_of(l.get(), w).pid == processes[static_cast<std::size_t>(w)]->pid(),
                  "external ones outlive epochs");
  l.reset();
  for (const auto& p : processes)
    CHECK_MESSAGE(p->wait() == 0, "the workers exit by themselves, and the host reaps them");
}

// promise: start-external
TEST_CASE("external: open_worker returns the requested worker, or fails with the reason") {
  Setup s(4);
  s.external(2);
  const Loader l = s.create();
  Error e;
  std::int32_t id = 2;
  int fd = -7;
  CHECK(feedlane_loader_open_worker(l.get(), &id, &fd, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(e.argument) == "id");
  CHECK(e.found == 2);
  id = -2;
  CHECK(feedlane_loader_open_worker(l.get(), &id, &fd, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(fd == -7);
  {
    Setup two(4);
    const Loader other = two.external(2).create();
    const Offer first = open_worker(other.get(), 0);
    CHECK(first.status == FEEDLANE_OK);
    CHECK(first.id == 0);
    CHECK_MESSAGE(open_worker(other.get(), 0).status == FEEDLANE_E_STATE, "worker 1 is free, but was not asked for");
    CHECK(::close(first.fd) == 0);
  }
  const Offer one = open_worker(l.get(), 1);
  CHECK(one.status == FEEDLANE_OK);
  CHECK(one.id == 1);
  CHECK(worker_of(l.get(), 1).state == FEEDLANE_WORKER_STARTING);
  CHECK(worker_of(l.get(), 1).pid == 0);
  id = 1;
  CHECK(feedlane_loader_open_worker(l.get(), &id, &fd, &e) == FEEDLANE_E_STATE);
  CHECK(std::string(e.argument) == "id");
  const Offer other = open_worker(l.get());
  CHECK(other.status == FEEDLANE_OK);
  CHECK(other.id == 0);
  CHECK(open_worker(l.get()).status == FEEDLANE_END);
  CHECK(::close(one.fd) == 0);
  CHECK(::close(other.fd) == 0);
  const Offer again = open_worker(l.get());
  CHECK_MESSAGE(again.status == FEEDLANE_OK, "an offer that nobody took is free again");
  CHECK(::close(again.fd) == 0);
}

// promise: start-external
TEST_CASE("external: open_worker fails with EMFILE without a free descriptor, and succeeds once descriptors are free") {
  Setup s(4);
  s.external(1);
  const Loader l = s.create();
  {
    const FewDescriptors few(2);
    Error e;
    std::int32_t id = -1;
    int fd = -7;
    CHECK(feedlane_loader_open_worker(l.get(), &id, &fd, &e) == FEEDLANE_E_OS);
    CHECK(e.os_errno == EMFILE);
    CHECK(fd == -7);
  }
  const Offer offer = open_worker(l.get());
  CHECK(offer.status == FEEDLANE_OK);
  CHECK(offer.id == 0);
  CHECK(::close(offer.fd) == 0);
}

// promise: start-external
TEST_CASE("external: next returns E_PEER_DEAD while no worker is attached or offered") {
  Setup s(10, 2);
  s.external(1);
  const Loader l = s.create();
  begin(l.get(), 0);
  for (int i = 0; i < 2; i++) {
    Error e;
    CHECK(take(l.get(), &e).status == FEEDLANE_E_PEER_DEAD);
    CHECK(e.says("feedlane_loader_open_worker"));
  }
  const Offer o = open_worker(l.get());
  REQUIRE(o.status == FEEDLANE_OK);
  CHECK_MESSAGE(take(l.get(), nullptr, 1'000'000).status == FEEDLANE_TIMEOUT, "an offer may be taken yet");
  CHECK(::close(o.fd) == 0);
  CHECK(take(l.get()).status == FEEDLANE_E_PEER_DEAD);
  const auto process = start(l.get());
  check_sequence(take_rest(l.get()), 10, 2);
}

// promise: start-external
TEST_CASE("external: an offer expires after start_timeout_ns, and a later attach fails with E_PEER_DEAD") {
  Setup s(4);
  s.external(1);
  s.config.start_timeout_ns = 50'000'000;
  const Loader l = s.create();
  begin(l.get(), 0);
  const Offer o = open_worker(l.get());
  REQUIRE(o.status == FEEDLANE_OK);
  CHECK(take(l.get()).status == FEEDLANE_E_PEER_DEAD);
  feedlane_worker* w = nullptr;
  CHECK_MESSAGE(in_child([&](Findings& f) {
                  EXPECT(f, feedlane_worker_attach(o.fd, nullptr, patience_ns, &w, nullptr) == FEEDLANE_E_PEER_DEAD);
                }) == "",
                "a late attach fails");
  CHECK(::close(o.fd) == 0);
}

// promise: fault-worker-dies, worker-external-killed
TEST_CASE("external: a killed worker's batch is made again, open_worker offers its place, and its host reaps it") {
  Setup s(20);
  s.external(1).fields({field("index", int64_type), field("attempt", int64_type), field("generation", int64_type)});
  s.plan.end_index = 6;
  s.plan.end_attempts = 1;
  s.plan.end_signal = SIGKILL;
  const Loader l = s.create();
  const auto first = start(l.get());
  begin(l.get(), 0);
  std::vector<Taken> taken;
  std::int32_t status = FEEDLANE_OK;
  for (Taken t = take(l.get()); (status = t.status) == FEEDLANE_OK; t = take(l.get())) taken.push_back(std::move(t));
  CHECK(status == FEEDLANE_E_PEER_DEAD);
  CHECK(taken.size() == 6);
  CHECK(worker_of(l.get(), 0).state == FEEDLANE_WORKER_NONE);
  const std::vector<feedlane_event> told = events_of(l.get());
  REQUIRE(told.size() == 2);
  CHECK(told[0].kind == FEEDLANE_EVENT_WORKER_DIED);
  CHECK(told[1].kind == FEEDLANE_EVENT_WORKER_WANTED);
  const int ended = first->wait();
  REQUIRE_MESSAGE(ended != -1, "the host's own child was reaped by the library");
  CHECK(WIFSIGNALED(ended));
  const auto second = start(l.get());
  for (Taken& t : take_rest(l.get())) taken.push_back(std::move(t));
  check_sequence(taken, 20, 1);
  CHECK(taken[6].attempt == 1);
  CHECK(taken[6].value("generation") == 1);
  CHECK(taken[5].value("generation") == 0);
  CHECK(stats_of(l.get()).restarts == 1);
}

// promise: worker-external-max-restarts, fault-max-restarts
TEST_CASE("external: a place is not offered again after max_restarts, and next returns E_RESTARTS until begin") {
  for (const std::int32_t most : {-1, 2}) {
    CAPTURE(most);
    const std::int64_t allowed = most < 0 ? 0 : most;
    Setup s(20);
    s.external(1);
    s.plan.end_index = 6;
    s.plan.end_attempts = 100;
    s.plan.end_signal = SIGKILL;
    s.config.max_kills_per_batch = 100;
    s.config.max_restarts = most;
    const Loader l = s.create();
    begin(l.get(), 0);
    std::vector<std::unique_ptr<Process>> processes;
    Error e;
    std::int32_t status = FEEDLANE_E_PEER_DEAD;
    for (; status == FEEDLANE_OK || status == FEEDLANE_E_PEER_DEAD; status = take(l.get(), &e).status)
      if (status == FEEDLANE_E_PEER_DEAD) processes.push_back(start(l.get()));
    CHECK(status == FEEDLANE_E_RESTARTS);
    CHECK(std::string(e.argument) == "config.max_restarts");
    CHECK(e.found == allowed + 1);
    CHECK(e.needed == allowed);
    CHECK(e.worker == 0);
    CHECK(processes.size() == static_cast<std::size_t>(allowed + 1));
    CHECK(open_worker(l.get()).status == FEEDLANE_END);
    CHECK(open_worker(l.get(), 0).status == FEEDLANE_END);
    CHECK(events_of(l.get(), FEEDLANE_EVENT_WORKER_WANTED).size() == static_cast<std::size_t>(allowed));
    CHECK(stats_of(l.get()).restarts == static_cast<std::uint64_t>(allowed));
    begin(l.get(), 1);
    const Offer o = open_worker(l.get());
    CHECK(o.status == FEEDLANE_OK);
    CHECK(::close(o.fd) == 0);
  }
}

// promise: worker-external-max-restarts
TEST_CASE("external: killed workers count against max_restarts before the host replaces them") {
  Setup s(20);
  s.external(2);
  s.config.max_restarts = 1;
  const Loader l = s.create();
  const auto first = start(l.get());
  const auto second = start(l.get());
  begin(l.get(), 0);
  wait_until_ready(l.get(), 2);
  first->kill(SIGKILL);
  second->kill(SIGKILL);
  const std::vector<Taken> all = take_outcomes(l.get());
  REQUIRE_FALSE(all.empty());
  CHECK(all.back().status == FEEDLANE_E_RESTARTS);
  CHECK(all.back().found == 2);
  CHECK(all.back().needed == 1);
}

// promise: worker-external-never-ready
TEST_CASE("external: next returns E_INIT until begin after five offers in a row end before a worker attaches") {
  Setup s(4);
  s.external(1);
  const Loader l = s.create();
  begin(l.get(), 0);
  for (int i = 1; i <= 5; i++) {
    const Offer o = open_worker(l.get());
    REQUIRE(o.status == FEEDLANE_OK);
    CHECK(::close(o.fd) == 0);
    Error e;
    CHECK(take(l.get(), &e).status == (i < 5 ? FEEDLANE_E_PEER_DEAD : FEEDLANE_E_INIT));
    if (i == 5) CHECK_MESSAGE(e.says("worker 0: ended before it attached (5 times in a row)"), std::string(e.text));
  }
  CHECK(open_worker(l.get()).status == FEEDLANE_END);
  begin(l.get(), 1);
  const auto process = start(l.get());
  check_sequence(take_rest(l.get()), 4, 1);
}

// promise: start-external, worker-external-leaves
TEST_CASE("external: a worker that detaches by itself is not counted as a failure, and its process continues") {
  constexpr std::int64_t visitors = 40;
  Setup s(2 * visitors);
  s.external(1).fields({field("index", int64_type)});
  s.config.prefetch_factor = 1;
  const Gate gate;
  const Loader l = s.create();
  begin(l.get(), 0);
  std::vector<Taken> taken;
  std::vector<std::unique_ptr<Child>> children;
  for (std::int64_t i = 0; i < visitors; i++) {
    children.push_back(start_visitor(l.get(), 2, gate.fd()));
    std::int32_t status = FEEDLANE_OK;
    for (Taken t = take(l.get()); (status = t.status) == FEEDLANE_OK; t = take(l.get())) taken.push_back(std::move(t));
    CHECK(status == (i + 1 < visitors ? FEEDLANE_E_PEER_DEAD : FEEDLANE_END));
  }
  check_sequence(taken, 2 * visitors, 1);
  const std::vector<feedlane_event> told = events_of(l.get());
  CHECK_FALSE(told.empty());
  for (const feedlane_event& e : told) CHECK(e.kind == FEEDLANE_EVENT_WORKER_WANTED);
  CHECK(stats_of(l.get()).restarts == 0);
  gate.open();
  for (const auto& child : children) CHECK(child->finish() == "");
}

// promise: start-external
TEST_CASE(
    "external: with FEEDLANE_START_HOST, workers get tasks before they attach, and the tasks of one that was never "
    "started go to others") {
  Setup s(8);
  s.external(2).fields({field("index", int64_type)});
  s.config.start = FEEDLANE_START_HOST;
  const Gate gate;
  const Loader l = s.create();
  begin(l.get(), 0);
  const Offer never = open_worker(l.get(), 0);
  REQUIRE(never.status == FEEDLANE_OK);
  const std::unique_ptr<Child> visitor = start_visitor(l.get(), 1, gate.fd());
  CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);  // tasks are sent
  gate.open();
  CHECK(visitor->finish() == "");  // it has made a batch, and the loader was in no call
  REQUIRE(::close(never.fd) == 0);
  const std::unique_ptr<Process> process = start(l.get());
  std::vector<Taken> taken;
  std::int32_t status = FEEDLANE_OK;
  for (Taken t = take(l.get()); (status = t.status) == FEEDLANE_OK; t = take(l.get())) taken.push_back(std::move(t));
  CHECK(status == FEEDLANE_END);
  check_sequence(taken, 8, 1);
}

// promise: start-threads
TEST_CASE("external: threads may leave after any task and attach again without a failure") {
  Setup s(10);
  s.external(1).fields({field("index", int64_type)});
  s.config.start = FEEDLANE_START_THREAD;
  s.config.max_restarts = -1;
  const Loader l = s.create();
  std::atomic<bool> is_over{false};
  std::thread visitor([&] {
    while (!is_over) {
      feedlane_worker* w = nullptr;
      if (feedlane_worker_attach(-1, l.get(), FEEDLANE_FOREVER, &w, nullptr) != FEEDLANE_OK) {
        std::this_thread::yield();
        continue;
      }
      const feedlane_task* task = nullptr;
      (void)feedlane_worker_ready(w, 0, nullptr, nullptr);
      if (feedlane_worker_next(w, patience_ns, &task, nullptr) == FEEDLANE_OK) {
        std::memcpy(task->tensors[0].data, task->indices, sizeof(std::int64_t));
        (void)feedlane_task_commit(task, 1, nullptr);
      }
      (void)feedlane_worker_destroy(&w);
    }
  });
  begin(l.get(), 0);
  check_sequence(take_rest(l.get()), 10, 1);
  is_over = true;
  CHECK(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
  visitor.join();
  CHECK(stats_of(l.get()).restarts == 0);
  CHECK(events_of(l.get(), FEEDLANE_EVENT_WORKER_DIED).empty());
}

// promise: start-external
TEST_CASE("external: open_worker returns during an epoch even if finished batches wait to be taken") {
  Setup s(10);
  s.external(2);
  const Loader l = s.create();
  const auto first = start(l.get());
  begin(l.get(), 0);
  CHECK(take(l.get()).batch == 0);
  REQUIRE(eventually([&] { return worker_of(l.get(), 0).tasks >= 2; }));
  const auto second = start(l.get());
  CHECK(feedlane_loader_interrupt(l.get()) == FEEDLANE_OK);
  CHECK(open_worker(l.get()).status == FEEDLANE_END);
  CHECK(take(l.get()).status == FEEDLANE_INTERRUPTED);
  CHECK(take_rest(l.get()).size() == 9);
}

// promise: start-external
TEST_CASE("external: a loader destroyed during an epoch leaves no descriptor, no mapping and no process") {
  const std::vector<int> before = open_descriptors();
  {
    Setup s(20);
    s.external(2);
    Loader l = s.create();
    const auto first = start(l.get());
    const auto second = start(l.get(), "pull");
    begin(l.get(), 0);
    CHECK(take(l.get()).batch == 0);
    wait_until_ready(l.get(), 2);
    l.reset();
    CHECK(first->wait() == 0);
    CHECK(second->wait() == 0);
  }
  CHECK(open_descriptors() == before);
  CHECK(mappings_of("feedlane-") == 0);
  CHECK_FALSE(has_children());
}
