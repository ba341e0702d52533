// SPDX-License-Identifier: Apache-2.0
// Which marks of a worker can be true, and which cannot.
#include "supervisor/audit.hpp"

#include <doctest/doctest.h>

#include <string>

#include "os/event.hpp"
#include "supervisor/roster.hpp"
#include "unit/shm/segments.hpp"

using feedlane::Error;
using feedlane::supervisor::Member;
using feedlane::supervisor::Roster;
using feedlane::supervisor::TaskRing;
namespace ring = feedlane::ring;
namespace shm = feedlane::shm;

namespace {

// Worker 1 of a small loader. It has been sent tasks 5, 6 and 7, and was seen to have begun 5.
struct Fixture {
  Fixture() {
    Error ignored;
    feedlane::test::create(segments);
    roster.set_up(2, segments);
    REQUIRE(feedlane::os::create_event(event, ignored) == FEEDLANE_OK);
    worker().peer.tasks().reset(event.get());
    for (std::uint64_t id = 5; id <= 7; id++) {
      shm::TaskMessage message{};
      message.id = id;
      worker().peer.tasks().send(message);
    }
    worker().seen_task = 5;
    cells = {segments.result_lane(1), shm::loader_cell_bytes, segments.plan().geometry.ring_capacity};
    start = roster.lanes().prepare(1);
    (void)roster.lanes().open(1);
  }
  Member& worker() { return roster.at(1); }
  // The argument that is refused; "": none, "lane": the lane.
  std::string refused(TaskRing::Marks marks, std::uint64_t oldest = 5) {
    Error error;
    if (feedlane::supervisor::check_marks(1, worker(), marks, roster.lanes(), oldest, error) == FEEDLANE_OK) return "";
    CHECK(error.code == FEEDLANE_E_CORRUPT);
    return std::string(error.argument).empty() ? "lane" : error.argument;
  }
  // As a worker commits its `number`-th result.
  void commit(std::uint64_t number) const {
    cells.sequence(start + number).store(start + number + 1, std::memory_order_release);
  }

  shm::Segments segments;
  feedlane::os::Fd event;
  Roster roster;
  ring::Cells cells;
  std::uint64_t start = 0;
};

}  // namespace

TEST_CASE("a worker's begun_through is refused if it goes back or exceeds the last task that was sent") {
  Fixture f;
  CHECK(f.refused({4, 0}) == "row.begun_through");
  CHECK(f.refused({5, 5}).empty());
  CHECK(f.refused({5, 6}).empty());
  CHECK(f.refused({8, 8}) == "row.begun_through");
  f.commit(0);
  f.commit(1);
  CHECK(f.refused({7, 7}).empty());
}

TEST_CASE("a worker's started_task is refused unless it is the last begun task, the next one, or none") {
  Fixture f;
  f.commit(0);
  CHECK(f.refused({6, 5}) == "row.started_task");
  CHECK(f.refused({6, 6}).empty());
  CHECK(f.refused({6, 7}).empty());
  CHECK(f.refused({6, 8}) == "row.started_task");
  CHECK(f.refused({6, 0}).empty());
}

TEST_CASE("a worker is refused if a task that it claims to have answered has no result") {
  Fixture f;
  CHECK_MESSAGE(f.refused({5, 0}) == "result.id", "no task is in hand, so task 5 counts as answered");
  CHECK_MESSAGE(f.refused({5, 5}).empty(), "task 5 is still in hand");
  CHECK_MESSAGE(f.refused({6, 6}) == "result.id", "task 6 is in hand, so task 5 counts as answered");
  CHECK_MESSAGE(f.refused({6, 6}, 6).empty(), "the result of task 5 was already taken");
  f.commit(0);
  CHECK(f.refused({5, 0}).empty());
  CHECK(f.refused({6, 6}).empty());
}

TEST_CASE("a worker's lane is refused unless the cells of its tasks hold consecutive results") {
  Fixture f;
  f.commit(1);
  CHECK_MESSAGE(f.refused({5, 5}) == "lane", "the second result without the first");
  f.commit(0);
  CHECK(f.refused({5, 5}).empty());
  f.cells.sequence(f.start + 2).store(12345, std::memory_order_release);
  CHECK(f.refused({5, 5}) == "lane");
  f.commit(2);
  f.cells.sequence(f.start + 3).store(12345, std::memory_order_release);
  CHECK_MESSAGE(f.refused({5, 5}).empty(), "no task belongs to that cell");
  REQUIRE(f.worker().peer.tasks().revoke({7}, 5) == 0);
  CHECK(f.refused({5, 5}).empty());
  f.cells.sequence(f.start + 2).store(12345, std::memory_order_release);
  CHECK_MESSAGE(f.refused({5, 5}) == "lane", "a revoked task is answered too");
}
