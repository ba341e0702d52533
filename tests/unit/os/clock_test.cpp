// SPDX-License-Identifier: Apache-2.0
// Deadlines.
#include "os/clock.hpp"

#include <doctest/doctest.h>

using feedlane::os::Deadline;
using feedlane::os::now_ns;

TEST_CASE("a timeout of 0 allows a single try") {
  CHECK(Deadline::after(0).remaining_ns() == 0);
  CHECK(Deadline::after(-1).remaining_ns() == 0);
  CHECK(Deadline::after(INT64_MIN).remaining_ns() == 0);
  CHECK_FALSE(Deadline::after(0).is_never());
}

TEST_CASE("a deadline of FOREVER never passes") {
  const Deadline never = Deadline::after(FEEDLANE_FOREVER);
  CHECK(never.is_never());
  CHECK(never.remaining_ns() == FEEDLANE_FOREVER);
  CHECK(Deadline::never().is_never());
}

TEST_CASE("a timeout beyond the end of the clock doesn't overflow") {
  const Deadline last = Deadline::after(FEEDLANE_FOREVER - 1);
  CHECK(last.is_never());
  CHECK_FALSE(Deadline::after(FEEDLANE_FOREVER / 2).is_never());
  CHECK(Deadline::after(FEEDLANE_FOREVER / 2).remaining_ns() > FEEDLANE_FOREVER / 4);
}

TEST_CASE("the remaining time of a deadline shrinks to 0") {
  constexpr std::int64_t hour = std::int64_t{3600} * 1'000'000'000;
  const Deadline deadline = Deadline::after(hour);
  const std::int64_t first = deadline.remaining_ns();
  CHECK(first <= hour);
  CHECK(first > hour / 2);
  const std::int64_t before = now_ns();
  while (now_ns() == before) {
  }
  CHECK(deadline.remaining_ns() < first);
  CHECK(Deadline::at(now_ns()).remaining_ns() == 0);
  CHECK(Deadline::at(1).remaining_ns() == 0);
}

TEST_CASE("earlier returns the earlier of two deadlines") {
  const Deadline soon = Deadline::at(1000);
  const Deadline late = Deadline::at(now_ns() + std::int64_t{3600} * 1'000'000'000);
  CHECK(soon.earlier(late).remaining_ns() == 0);
  CHECK(late.earlier(soon).remaining_ns() == 0);
  CHECK(late.earlier(Deadline::never()).remaining_ns() > 0);
  CHECK_FALSE(late.earlier(Deadline::never()).is_never());
  CHECK(Deadline::never().earlier(Deadline::never()).is_never());
}
