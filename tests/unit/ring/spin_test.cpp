// SPDX-License-Identifier: Apache-2.0
#include "ring/spin.hpp"

#include <doctest/doctest.h>
#include <sys/sysinfo.h>

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

TEST_CASE("where some party would have no processor nobody looks") {
  Spin spin(processors + 1);
  for (int i = 0; i < 1000; i++) REQUIRE(looks_in_vain(spin) == 0);
}

TEST_CASE("with one for each it looks until it comes") {
  Spin spin(processors);
  int looks = 0;
  CHECK(spin.until(Deadline::never(), [&] { return ++looks == 1000; }));
  CHECK(looks == 1000);
}

TEST_CASE("patience wears off when nothing comes, and success restores it") {
  Spin spin(1);
  int tries = 0;
  while (looks_in_vain(spin) != 0) REQUIRE(++tries < 20);
  CHECK_MESSAGE(tries > 1, "not at the first time");
  int rests = 0;
  while (looks_in_vain(spin) == 0) REQUIRE(++rests < 1000);
  CHECK_MESSAGE(rests > 10, "it is tried again, but seldom");
  CHECK(spin.until(Deadline::never(), [] { return true; }));
  CHECK(looks_in_vain(spin) != 0);
}

TEST_CASE("who has no time doesn't look") {
  Spin spin(1);
  CHECK(looks_in_vain(spin, Deadline::at(0)) == 0);
  CHECK(looks_in_vain(spin, Deadline::at(1)) == 0);
}
