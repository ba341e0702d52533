// SPDX-License-Identifier: Apache-2.0
// How long tasks take, compared with a wake-up.
#include "loader/pace.hpp"

#include <doctest/doctest.h>

using feedlane::loader::Pace;

namespace {

constexpr std::int64_t ms = 1'000'000;

Pace pace_of(std::uint64_t work_ns, int results) {
  Pace pace;
  for (int i = 0; i < results; i++) pace.on_result(work_ns, ms);
  return pace;
}

}  // namespace

TEST_CASE("before the first result, tasks count as long") {
  CHECK(!Pace().is_short());
  CHECK(!Pace().is_tiny());
}

TEST_CASE("tasks are short below 50 us and tiny below 5 us") {
  CHECK(pace_of(0, 1).is_tiny());
  CHECK(pace_of(4'000, 1).is_tiny());
  CHECK(pace_of(6'000, 1).is_short());
  CHECK(!pace_of(6'000, 1).is_tiny());
  CHECK(!pace_of(60'000, 1).is_short());
}

TEST_CASE("one long task among 64 makes tiny ones count as no longer tiny, until many tiny ones follow") {
  Pace pace = pace_of(1'000, 64);
  pace.on_result(10 * ms, ms);
  CHECK(!pace.is_tiny());
  for (int i = 0; i < 300; i++) pace.on_result(1'000, ms);
  CHECK(pace.is_tiny());
}

TEST_CASE("without a result for 100 us, a task must be longer than the others") {
  const Pace pace = pace_of(1'000, 1);
  CHECK(!pace.is_stalled(ms + 100'000));
  CHECK(pace.is_stalled(ms + 100'001));
}
