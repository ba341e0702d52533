// SPDX-License-Identifier: Apache-2.0
// Which deadline of a worker has passed, which is the next, and what a trainer's absence excuses.
#include "supervisor/deadlines.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "os/event.hpp"
#include "unit/shm/segments.hpp"

using feedlane::Error;
using feedlane::os::Deadline;
using feedlane::supervisor::Deadlines;
using feedlane::supervisor::Member;
using feedlane::supervisor::Settings;
using feedlane::supervisor::State;
using Missed = Deadlines::Missed;
namespace shm = feedlane::shm;

namespace {

constexpr std::int64_t hour = std::int64_t{3600} * 1'000'000'000;

// Two workers' places, in which nobody is.
struct Fixture {
  Fixture() : deadlines(settings), members(2) {
    Error error;
    settings.start_timeout_ns = 2 * hour;
    feedlane::test::create(segments);
    REQUIRE(feedlane::os::create_event(event, error) == FEEDLANE_OK);
    for (std::uint32_t w = 0; w < 2; w++) {
      members[w].peer.init(w, segments);
      members[w].peer.tasks().reset(event.get());
    }
    deadlines.look(members);
  }
  [[nodiscard]] std::int64_t now() const { return deadlines.now_ns(); }
  Member& ready_with_a_task() {
    Member& m = members[0];
    m.peer.set_state(State::ready);
    shm::TaskMessage message{};
    message.id = 7;
    m.peer.tasks().send(message);
    return m;
  }
  // Whether the next deadline is so many hours from now, to the minute.
  [[nodiscard]] bool next_is_in(std::int64_t hours) const {
    const std::int64_t left = deadlines.next(members).remaining_ns();
    return left <= hours * hour && left > hours * hour - hour / 60;
  }

  Settings settings;
  Deadlines deadlines;
  shm::Segments segments;
  feedlane::os::Fd event;
  std::vector<Member> members;
};

}  // namespace

TEST_CASE("a member without a process misses no deadline") {
  Fixture f;
  CHECK(f.deadlines.missed_by(f.members[0]) == Missed::nothing);
  CHECK(f.deadlines.next(f.members).is_never());
  CHECK(f.deadlines.next_look(f.members).is_never());
}

TEST_CASE("a deadline has passed at its nanosecond and not one nanosecond before") {
  for (const std::int64_t late : {0, 1}) {
    CAPTURE(late);
    Fixture f;
    Member& empty = f.members[1];
    empty.start_again_ns = f.now() + 1 - late;
    CHECK(f.deadlines.missed_by(empty) == (late != 0 ? Missed::restart : Missed::nothing));

    Member& starting = f.members[0];
    for (const State state : {State::starting, State::opening}) {
      starting.peer.set_state(state);
      starting.start_deadline_ns = f.now() + 1 - late;
      CHECK(f.deadlines.missed_by(starting) == (late != 0 ? Missed::start : Missed::nothing));
    }
    starting.peer.set_state(State::ready);
    CHECK_MESSAGE(f.deadlines.missed_by(starting) == Missed::nothing, "it is ready, so it has kept it");

    f.settings.task_timeout_ns = hour;
    Member& working = f.ready_with_a_task();
    working.progress_ns = f.now() - hour + 1 - late;
    CHECK(f.deadlines.missed_by(working) == (late != 0 ? Missed::task : Missed::nothing));
    working.is_stuck = true;
    CHECK_MESSAGE(f.deadlines.missed_by(working) == Missed::nothing, "that was told");
    working.is_stuck = false;
    working.peer.tasks().count_answer();
    CHECK_MESSAGE(f.deadlines.missed_by(working) == Missed::nothing, "it has nothing to do");
  }
}

TEST_CASE("without a task limit no task is late, and opening a data set has no deadline") {
  Fixture f;
  Member& m = f.ready_with_a_task();
  m.progress_ns = f.now() - hour;  // before the machine was started, perhaps
  CHECK(f.deadlines.missed_by(m) == Missed::nothing);
  CHECK(f.deadlines.open_deadline_ns() == FEEDLANE_FOREVER);
  f.settings.task_timeout_ns = hour;
  CHECK(f.deadlines.missed_by(m) == Missed::task);
  CHECK(f.deadlines.open_deadline_ns() >= f.now() + 2 * hour);
  m.progress_ns = FEEDLANE_FOREVER - 1;
  CHECK_MESSAGE(f.deadlines.next(f.members).is_never(), "the sum is none that a clock reaches");
}

TEST_CASE("workers that nothing starts have no deadline for attaching") {
  Fixture f;
  CHECK(f.deadlines.attach_deadline_ns(false) == FEEDLANE_FOREVER);
  CHECK(f.deadlines.attach_deadline_ns(true) >= f.now() + 2 * hour);
  f.settings.start_timeout_ns = FEEDLANE_FOREVER;
  CHECK(f.deadlines.attach_deadline_ns(true) == FEEDLANE_FOREVER);
}

TEST_CASE("a worker that was asked to end has the time it was given") {
  Fixture f;
  Member& m = f.members[0];
  m.peer.set_state(State::stopping);
  m.end_deadline = Deadline::after(hour);
  CHECK(f.deadlines.missed_by(m) == Missed::nothing);
  CHECK(f.next_is_in(1));
  m.end_deadline = Deadline::at(1);
  CHECK(f.deadlines.missed_by(m) == Missed::end);
}

TEST_CASE("the next deadline is the earliest of all members' deadlines") {
  Fixture f;
  f.members[0].start_again_ns = f.now() + 9 * hour;
  CHECK(f.next_is_in(9));
  f.members[1].end_deadline = Deadline::at(f.now() + 8 * hour);
  CHECK(f.next_is_in(8));
  f.members[0].start_again_ns = f.now() + 7 * hour;
  CHECK(f.next_is_in(7));
  f.members[1].peer.set_state(State::starting);
  f.members[1].start_deadline_ns = f.now() + 6 * hour;
  CHECK(f.next_is_in(6));
  f.settings.task_timeout_ns = 5 * hour;
  f.ready_with_a_task().progress_ns = f.now();
  CHECK(f.next_is_in(5));
}

TEST_CASE("while a deadline runs, the trainer checks it four times within its length") {
  Fixture f;
  f.ready_with_a_task().progress_ns = f.now();
  CHECK_MESSAGE(f.deadlines.next_look(f.members).is_never(), "a task without a limit");
  f.settings.task_timeout_ns = 4 * hour;
  f.settings.start_timeout_ns = 8 * hour;
  const auto look_in = [&] { return f.deadlines.next_look(f.members).remaining_ns(); };
  CHECK(look_in() <= hour);
  CHECK(look_in() > hour - hour / 60);
  f.settings.start_timeout_ns = hour;
  CHECK_MESSAGE(look_in() <= hour / 4, "the shorter one decides");
  f.settings.task_timeout_ns = FEEDLANE_FOREVER;
  f.members[1].peer.set_state(State::opening);
  f.members[1].start_deadline_ns = f.now() + 1;
  CHECK(look_in() <= hour / 4);
  CHECK(look_in() > 0);
  f.members[1].start_deadline_ns = FEEDLANE_FOREVER;
  CHECK(f.deadlines.next_look(f.members).is_never());
}

TEST_CASE("a trainer absent for half of a deadline restarts the deadlines of its workers, at most eight times") {
  Fixture f;
  // Limits that any two looks are further apart than.
  f.settings.task_timeout_ns = f.settings.start_timeout_ns = 4;
  Member& working = f.ready_with_a_task();
  Member& opening = f.members[1];
  opening.peer.set_state(State::opening);
  for (std::uint32_t i = 1; i <= 10; i++) {
    working.progress_ns = opening.start_deadline_ns = 1;
    f.deadlines.look(f.members);
    CHECK(working.excused == std::min(i, 8u));
    CHECK(opening.excused == std::min(i, 8u));
    CHECK(working.progress_ns == (i <= 8 ? f.now() : 1));
    CHECK(opening.start_deadline_ns == (i <= 8 ? f.now() + 4 : 1));
  }
  working.note_progress(f.now());
  CHECK(working.excused == 0);
}

TEST_CASE("a shorter absence restarts no deadline, and no absence matters to workers without a limit") {
  Fixture f;
  f.settings.task_timeout_ns = f.settings.start_timeout_ns = hour;
  Member& working = f.ready_with_a_task();
  working.progress_ns = 1;
  Member& opening = f.members[1];
  opening.peer.set_state(State::opening);
  opening.start_deadline_ns = 1;
  f.deadlines.look(f.members);
  CHECK(working.progress_ns == 1);
  CHECK(opening.start_deadline_ns == 1);
  f.settings.task_timeout_ns = f.settings.start_timeout_ns = 4;
  opening.start_deadline_ns = FEEDLANE_FOREVER;
  working.peer.tasks().count_answer();
  f.deadlines.look(f.members);
  CHECK(working.progress_ns == 1);
  CHECK(opening.start_deadline_ns == FEEDLANE_FOREVER);
  CHECK(working.excused + opening.excused == 0);
}
