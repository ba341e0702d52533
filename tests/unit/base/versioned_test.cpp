// SPDX-License-Identifier: Apache-2.0
// Structs that begin with their size, from callers older and newer than the library.
#include "base/versioned.hpp"

#include <doctest/doctest.h>

#include <string>

using feedlane::Error;

namespace {

struct Known {
  std::size_t size;
  std::int64_t a, b;
};
struct Newer {
  Known known;
  std::int64_t c;
};

}  // namespace

TEST_CASE("members missing in an older caller's shorter struct are read as zero") {
  Known in{offsetof(Known, b), 5, 99};
  Known out{};
  Error error;
  REQUIRE(feedlane::read_versioned(&in, out, "config", error) == FEEDLANE_OK);
  CHECK(out.a == 5);
  CHECK(out.b == 0);
  CHECK(out.size == sizeof(Known));
}

TEST_CASE("a newer caller's longer struct is accepted if its unknown members are zero, and otherwise refused by name") {
  Newer in{{sizeof(Newer), 1, 2}, 0};
  Known out{};
  Error error;
  CHECK(feedlane::read_versioned(&in.known, out, "config", error) == FEEDLANE_OK);
  in.c = 1;
  CHECK(feedlane::read_versioned(&in.known, out, "config", error) == FEEDLANE_E_ABI);
  CHECK(std::string(error.argument) == "config");
  CHECK(error.found == sizeof(Newer));
  CHECK(error.needed == sizeof(Known));
}

TEST_CASE("a NULL struct and a struct with an invalid size are refused") {
  Known out{};
  Error error;
  CHECK(feedlane::read_versioned<Known>(nullptr, out, "config", error) == FEEDLANE_E_ARGUMENT);
  Known in{0, 1, 2};
  CHECK(feedlane::read_versioned(&in, out, "config", error) == FEEDLANE_E_ABI);
  CHECK(error.found == 0);
  in.size = std::size_t{1} << 40;
  CHECK(feedlane::read_versioned(&in, out, "config", error) == FEEDLANE_E_ABI);
}

TEST_CASE("an output struct is written up to the caller's size") {
  Known out{offsetof(Known, b), 0, 77};
  Error error;
  REQUIRE(feedlane::check_output(&out, "out", error) == FEEDLANE_OK);
  feedlane::write_versioned(&out, Known{sizeof(Known), 1, 2});
  CHECK(out.a == 1);
  CHECK(out.b == 77);
  CHECK(out.size == offsetof(Known, b));
  out.size = 0;
  CHECK(feedlane::check_output(&out, "out", error) == FEEDLANE_E_ABI);
}
