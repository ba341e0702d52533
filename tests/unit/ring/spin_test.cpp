// SPDX-License-Identifier: Apache-2.0
// Looking for a while before sleeping.
#include "ring/spin.hpp"

#include <doctest/doctest.h>
#include <sys/sysinfo.h>

#include <initializer_list>

using feedlane::os::Deadline;
using feedlane::ring::Spin;

namespace {

const auto processors = static_cast<std::uint32_t>(::get_nprocs());

// How often it looked, while nothing came.
int looks_in_vain(Spin& spin, Deadline deadline = Deadline::never()) {
  int looks = 0;
  CHECK_FALSE(spin.until(deadline, [&] {
    looks++;
    return false;
  }));
  return looks;
}

}  // namespace

TEST_CASE("a wait does not spin without a processor for each party") {
  Spin spin(processors + 1);
  for (int i = 0; i < 1000; i++) REQUIRE(looks_in_vain(spin) == 0);
}

TEST_CASE("with a processor for each party, spinning ends with success or at its time limit") {
  constexpr int late = 1000;
  for (int i = 0; i < 100; i++) {
    Spin spin(processors);
    int looks = 0;
    const std::int64_t start = feedlane::os::now_ns();
    const bool came = spin.until(Deadline::never(), [&] { return ++looks == late; });
    // Patience is time, and another thread may have had the processor for all of it.
    const bool is_over = feedlane::os::now_ns() - start >= Spin::most_ns;
    CHECK((came || is_over));
    CHECK(came == (looks == late));
  }
}

TEST_CASE("spinning polls before it first reads the clock, however long the thread was not scheduled") {
  Spin spin(processors);
  int looks = 0;
  CHECK(spin.until(Deadline::never(), [&] {
    const std::int64_t patience_is_over = feedlane::os::now_ns() + 2 * Spin::most_ns;
    while (looks == 0 && feedlane::os::now_ns() < patience_is_over) {
    }
    return ++looks == 100;
  }));
  CHECK(looks == 100);
}

TEST_CASE("the time limit of spinning shrinks with failures, and a success restores it") {
  Spin spin(1);
  int tries = 0;
  while (looks_in_vain(spin) != 0) REQUIRE(++tries < 20);
  CHECK_MESSAGE(tries > 1, "not at the first time");
  int rests = 0;
  while (looks_in_vain(spin) == 0) REQUIRE(++rests < 1000);
  CHECK_MESSAGE(1 + rests == 63, "it is tried again, but seldom; the loop before ended with the first rest");
  CHECK(spin.until(Deadline::never(), [] { return true; }));
  CHECK(looks_in_vain(spin) != 0);
}

TEST_CASE("spinning sees a condition that becomes ready during it, however late") {
  for (const int late : {1, 200, 256, 257, 300, 1000}) {
    CAPTURE(late);
    // Again if another process had the processor for as long as the limit: then it has to give up.
    bool came = false;
    for (int tries = 0; !came && tries < 1000; tries++) {
      Spin spin(1);
      int looks = 0;
      came = spin.until(Deadline::never(), [&] { return ++looks >= late; });
    }
    CHECK(came);
  }
}

TEST_CASE("a wait with no time left does not spin") {
  Spin spin(1);
  CHECK(looks_in_vain(spin, Deadline::at(0)) == 0);
  CHECK(looks_in_vain(spin, Deadline::at(1)) == 0);
}
