// SPDX-License-Identifier: Apache-2.0
// A worker that is watched: by a foreign event loop, from other threads, in forked children.
#include <doctest/doctest.h>
#include <sys/epoll.h>

#include <cstring>
#include <string>
#include <thread>

#include "external_pair.hpp"
#include "support/events.hpp"

using namespace feedlane::test;

namespace {

// A callback that tries to end the task which it is called for.
void try_to_end(const feedlane_task* task, Findings& f) {
  Error e;
  EXPECT(f,
         feedlane_task_commit(task, task->count, &e) == FEEDLANE_E_STATE && e.says("ends when the callback returns"));
  EXPECT(f, feedlane_task_fail(task, -1, 1, nullptr, nullptr, &e) == FEEDLANE_E_STATE);
  EXPECT(f, feedlane_task_commit(task, FEEDLANE_EXHAUSTED, &e) == FEEDLANE_E_STATE &&
                e.says("ends when the callback returns"));
  const feedlane_task* other = nullptr;
  EXPECT(f, feedlane_worker_next(task->worker, 0, &other, &e) == FEEDLANE_E_STATE);
}

std::int32_t get(void* self, const feedlane_row* row, feedlane_error*) {
  try_to_end(row->task, *static_cast<Findings*>(self));
  std::memcpy(row->fields[0], &row->index, 8);
  std::memcpy(row->fields[1], &row->seed, 8);
  return FEEDLANE_OK;
}

std::int32_t fetch(void* self, const feedlane_task* task, feedlane_error*) {
  try_to_end(task, *static_cast<Findings*>(self));
  std::memcpy(task->tensors[0].data, task->indices, task->count * 8);
  std::memcpy(task->tensors[1].data, task->seeds, task->count * 8);
  return FEEDLANE_OK;
}

}  // namespace

TEST_CASE("a callback's task is ended only by the callback's return, not by a call in the callback") {
  for (const bool whole : {false, true}) {
    CAPTURE(whole);
    Pair p(6, 2, [&](int fd, Findings& f) {
      auto table = fresh<feedlane_dataset>();
      table.user_data = &f;
      if (whole) table.fetch = fetch;
      else table.get = get;
      EXPECT(f, feedlane_worker_run(fd, nullptr, &table, nullptr) == FEEDLANE_OK);
    });
    check_sequence(take_epoch(p.get(), 0), 6, 2);
    p.loader.reset();
    CHECK(p.child->finish() == "");
  }
}

TEST_CASE("a foreign event loop uses arm, poll and next, and the next epoch abandons the unfinished task") {
  const Reports reports;
  const Gate gate;
  const auto work = [&](int fd, Findings& f) {
    const Worker w = attach(fd, f);
    EXPECT(f, feedlane_worker_ready(w.get(), FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
    const feedlane_task* task = nullptr;
    EXPECT(f, feedlane_worker_next(w.get(), 0, &task, nullptr) == FEEDLANE_TIMEOUT);
    int wait_fd = -1;
    EXPECT(f, wait_fd_of(w.get(), &wait_fd) == FEEDLANE_OK);
    EXPECT(f, feedlane_worker_arm(w.get(), nullptr) == FEEDLANE_OK);
    EXPECT(f, !wait_readable(wait_fd, 0));
    send_report(reports.fd(), {Report::opened, 0, 0, 0, 0, 0});
    std::int32_t status = FEEDLANE_TIMEOUT;
    while (status == FEEDLANE_TIMEOUT) {
      if (feedlane_worker_arm(w.get(), nullptr) == FEEDLANE_OK) EXPECT(f, wait_readable(wait_fd));
      status = feedlane_worker_next(w.get(), 0, &task, nullptr);
    }
    EXPECT(f, status == FEEDLANE_OK && task->epoch == 0);
    EXPECT(f, feedlane_worker_check(w.get()) == FEEDLANE_OK);
    send_report(reports.fd(), {Report::began, 0, 0, 0, 0, 0});
    EXPECT(f, wait_readable(gate.fd()));
    EXPECT(f, feedlane_worker_check(w.get()) == FEEDLANE_ABANDONED);
    EXPECT(f, make(task) == FEEDLANE_OK);
    while (feedlane_worker_next(w.get(), patience_ns, &task, nullptr) == FEEDLANE_OK) {
      EXPECT(f, task->epoch == 1);
      EXPECT(f, make(task) == FEEDLANE_OK);
    }
  };
  Pair p(4, 1, work, {reports.fd(), gate.fd()});
  REQUIRE(reports.wait_for(Report::opened));
  begin(p.get(), 0);
  // An external worker gets nothing before the trainer has heard that it attached.
  while (reports.drain().empty()) (void)take(p.get(), nullptr, 1'000'000);
  begin(p.get(), 1);
  gate.open();
  check_sequence(take_rest(p.get()), 4, 1);
  CHECK_MESSAGE(stats_of(p.get()).late_results > 0, "what was given up came all the same");
  p.loader.reset();
  CHECK(p.child->finish() == "");
}

TEST_CASE("a call from another thread on a waiting worker returns E_BUSY") {
  Pair p(1, 1, [](int fd, Findings& f) {
    const Worker w = attach(fd, f);
    EXPECT(f, feedlane_worker_ready(w.get(), FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
    std::int32_t status = FEEDLANE_E_BUSY;
    const feedlane_task* task = nullptr;
    std::thread waiting([&] {
      while (status == FEEDLANE_E_BUSY) status = feedlane_worker_next(w.get(), 300'000'000, &task, nullptr);
    });
    // Sooner or later the thread is inside; from then on for long.
    while (feedlane_worker_arm(w.get(), nullptr) != FEEDLANE_E_BUSY) std::this_thread::yield();
    const feedlane_task* other = nullptr;
    Error e;
    EXPECT(f, feedlane_worker_next(w.get(), 0, &other, &e) == FEEDLANE_E_BUSY);
    EXPECT(f, feedlane_worker_ready(w.get(), 0, nullptr, &e) == FEEDLANE_E_BUSY);
    EXPECT(f, feedlane_worker_scratch(w.get(), 8, 8) == nullptr);
    waiting.join();
    EXPECT(f, status == FEEDLANE_TIMEOUT);
  });
  CHECK(p.child->finish() == "");
}

TEST_CASE("a worker's handle returns E_FORKED in a forked child, and the worker continues") {
  Pair p(2, 1, [](int fd, Findings& f) {
    Worker w = attach(fd, f);
    EXPECT(f, feedlane_worker_ready(w.get(), FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
    const feedlane_task* task = next_task(w, f);
    const std::string found = in_child([&](Findings& g) {
      feedlane_worker* copy = w.get();
      const feedlane_task* other = nullptr;
      auto info = fresh<feedlane_worker_info>();
      std::int32_t number = 0;
      Error e;
      EXPECT(g, feedlane_worker_next(copy, 0, &other, &e) == FEEDLANE_E_FORKED && e.code == FEEDLANE_E_FORKED);
      EXPECT(g, feedlane_worker_ready(copy, 0, nullptr, nullptr) == FEEDLANE_E_FORKED);
      EXPECT(g, feedlane_worker_get_info(copy, &info) == FEEDLANE_E_FORKED);
      EXPECT(g, feedlane_worker_check(copy) == FEEDLANE_E_FORKED);
      EXPECT(g, wait_fd_of(copy, &number) == FEEDLANE_E_FORKED);
      EXPECT(g, feedlane_worker_arm(copy, nullptr) == FEEDLANE_E_FORKED);
      EXPECT(g, feedlane_worker_scratch(copy, 8, 8) == nullptr);
      EXPECT(g, feedlane_task_commit(task, 1, nullptr) == FEEDLANE_E_FORKED);
      EXPECT(g, feedlane_task_fail(task, -1, 0, nullptr, nullptr, nullptr) == FEEDLANE_E_FORKED);
      EXPECT(g, feedlane_worker_destroy(&copy) == FEEDLANE_OK && copy == nullptr);
    });
    f.expect(found.empty(), found.c_str(), __LINE__);
    EXPECT(f, make(task) == FEEDLANE_OK);
    EXPECT(f, make(next_task(w, f)) == FEEDLANE_OK);
  });
  check_sequence(take_epoch(p.get(), 0), 2, 1);
  CHECK(p.child->finish() == "");
}

// The trainer reads one message of a worker at a time: what is left is no news to a loop that waits for edges, so arm says it.
TEST_CASE("an edge-triggered foreign event loop sees all messages that a worker sends at once") {
  const Reports reports;
  const Gate start, end;
  const auto work = [&](int fd, Findings& f) {
    EXPECT(f, wait_readable(start.fd()));
    const Worker w = attach(fd, f);
    EXPECT(f, feedlane_worker_ready(w.get(), FEEDLANE_E_INIT, "no such data set", nullptr) == FEEDLANE_OK);
    send_report(reports.fd(), {Report::opened, 0, 0, 0, 0, 0});
    EXPECT(f, wait_readable(end.fd()));
  };
  Pair p(4, 1, work, {reports.fd(), start.fd(), end.fd()});
  begin(p.get(), 0);
  int fd = -1;
  REQUIRE(wait_fd_of(p.get(), &fd) == FEEDLANE_OK);
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  REQUIRE(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  std::int32_t status = FEEDLANE_TIMEOUT;
  const auto sleeps = [&](int patience_ms) {
    while (status == FEEDLANE_TIMEOUT && feedlane_loader_arm(p.get(), nullptr) == FEEDLANE_AGAIN)
      status = take(p.get(), nullptr, 0).status;
    return status == FEEDLANE_TIMEOUT && ::epoll_wait(set, &event, 1, patience_ms) == 0;
  };
  while (!sleeps(0)) status = take(p.get(), nullptr, 0).status;
  start.open();
  REQUIRE(reports.wait_for(Report::opened));
  while (status == FEEDLANE_TIMEOUT) {
    REQUIRE_FALSE(sleeps(static_cast<int>(patience_ns / 1'000'000)));
    if (status == FEEDLANE_TIMEOUT) status = take(p.get(), nullptr, 0).status;
  }
  CHECK(status == FEEDLANE_E_INIT);
  (void)::close(set);
  end.open();
  CHECK(p.child->finish() == "");
}
