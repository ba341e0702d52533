// SPDX-License-Identifier: Apache-2.0
// The trainer's end of one worker's tasks: sent, begun, answered, taken back.
#include "supervisor/task_ring.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "os/event.hpp"
#include "unit/shm/segments.hpp"

using feedlane::Error;
using feedlane::supervisor::TaskRing;
namespace shm = feedlane::shm;

namespace {

using Ids = std::vector<std::uint64_t>;

// Worker 1 of a small loader, whose rings take 4 tasks. It has been sent tasks 5 to 8.
struct Fixture {
  Fixture() {
    Error error;
    feedlane::test::create(segments);
    REQUIRE(feedlane::os::create_event(event, error) == FEEDLANE_OK);
    tasks.init(1, segments);
    tasks.reset(event.get());
    for (std::uint64_t id = 5; id <= 8; id++) send(id);
  }
  void send(std::uint64_t id) {
    shm::TaskMessage message{};
    message.id = id;
    tasks.send(message);
  }
  void begin(std::uint64_t id) { segments.worker_row(1)->begun_through.store(id, std::memory_order_relaxed); }
  // The range that the worker sees.
  [[nodiscard]] Ids range() const {
    const shm::TrainerRow& row = *segments.trainer_row(1);
    return {row.revoked_from.load(std::memory_order_relaxed), row.revoked_until.load(std::memory_order_relaxed)};
  }
  [[nodiscard]] Ids may_be_declined() const {
    Ids ids;
    for (std::uint64_t id = 0; id < 20; id++)
      if (tasks.may_decline(id)) ids.push_back(id);
    return ids;
  }

  shm::Segments segments;
  feedlane::os::Fd event;
  TaskRing tasks;
};

}  // namespace

TEST_CASE("a task occupies its place in the ring until it is answered") {
  Fixture f;
  CHECK(f.tasks.unfinished() == 4);
  CHECK(f.tasks.last_sent() == 8);
  CHECK_FALSE(f.tasks.has_room());
  f.tasks.count_answer();
  CHECK(f.tasks.has_room());
  CHECK(f.tasks.unfinished() == 3);
  CHECK(f.may_be_declined().empty());
}

TEST_CASE("revoked tasks keep their places until the worker has passed over them") {
  Fixture f;
  f.begin(5);
  CHECK(f.tasks.revoke({6, 7, 8}, 5) == 0);
  CHECK(f.range() == Ids{6, 9});
  CHECK(f.may_be_declined() == Ids{6, 7, 8});
  CHECK(f.tasks.unfinished() == 1);
  CHECK(f.tasks.revoked() == 3);
  CHECK_FALSE(f.tasks.has_room());
  CHECK(f.tasks.forget_revoked(7));
  CHECK_FALSE(f.tasks.forget_revoked(7));
  CHECK_FALSE(f.tasks.forget_revoked(5));
  CHECK(f.tasks.has_room());
  CHECK(f.tasks.revoked() == 2);
  CHECK_MESSAGE((f.may_be_declined() == Ids{6, 7, 8}), "the worker's range has not changed");
}

TEST_CASE("a task begun during its revocation stays with the worker, which may still decline it") {
  Fixture f;
  f.begin(6);
  CHECK(f.tasks.revoke({6, 7, 8}, 5) == 1);
  CHECK(f.tasks.unfinished() == 2);
  CHECK(f.tasks.revoked() == 2);
  CHECK_FALSE(f.tasks.forget_revoked(6));
  CHECK(f.may_be_declined() == Ids{6, 7, 8});
  f.begin(8);
  CHECK_MESSAGE(f.tasks.revoke({8}, 5) == 1, "any of them may have been begun");
}

TEST_CASE("a range of revoked tasks only grows, at either end, while tasks of it are outstanding") {
  Fixture f;
  f.begin(5);
  CHECK(f.tasks.revoke({7}, 5) == 0);
  CHECK(f.tasks.revoke({8}, 5) == 0);
  CHECK(f.range() == Ids{7, 9});
  CHECK(f.tasks.revoke({6}, 5) == 0);
  CHECK_MESSAGE((f.range() == Ids{6, 9}), "task 6 was not begun; 7 and 8 are still outstanding");
  CHECK(f.may_be_declined() == Ids{6, 7, 8});
}

TEST_CASE("a new range of revoked tasks begins once every task of the last range was answered") {
  for (const std::uint64_t oldest : {8u, 9u}) {
    CAPTURE(oldest);
    Fixture f;
    f.begin(6);
    CHECK(f.tasks.revoke({6, 7, 8}, 5) == 1);
    CHECK(f.tasks.forget_revoked(7));
    CHECK(f.tasks.forget_revoked(8));
    f.send(9);
    f.send(10);
    CHECK(f.tasks.revoke({10}, oldest) == 0);
    CHECK(f.range() == (oldest < 9 ? Ids{6, 11} : Ids{10, 11}));
  }
}

TEST_CASE("a new generation starts with no task and no revoked task") {
  Fixture f;
  f.begin(6);
  (void)f.tasks.revoke({6, 7, 8}, 5);
  shm::WorkerRow& row = *f.segments.worker_row(1);
  row.sleeping.store(1, std::memory_order_relaxed);
  row.started_task.store(7, std::memory_order_relaxed);
  row.passed_over.store(9, std::memory_order_relaxed);
  f.tasks.reset(f.event.get());
  CHECK(row.sleeping.load(std::memory_order_relaxed) == 0);
  CHECK(f.tasks.in_hand() == 0);
  CHECK(f.tasks.passed_over() == 0);
  CHECK(f.tasks.unfinished() == 0);
  CHECK(f.tasks.revoked() == 0);
  CHECK(f.tasks.last_sent() == 0);
  CHECK(f.tasks.begun_through() == 0);
  CHECK(f.may_be_declined().empty());
  CHECK(f.range() == Ids{0, 0});
}

TEST_CASE("the last answered task is derived from the worker's two marks") {
  using Marks = TaskRing::Marks;
  CHECK(Marks{0, 0}.answered() == 0);
  CHECK(Marks{7, 0}.answered() == 7);
  CHECK(Marks{7, 7}.answered() == 6);
  CHECK(Marks{7, 8}.answered() == 6);
  CHECK(Marks{0, 8}.answered() == 0);
}
