// SPDX-License-Identifier: Apache-2.0
// Telling objects of this process from those that a forked child inherited.
#include "os/fork_stamp.hpp"

#include <doctest/doctest.h>

#include "unit/os/fixtures.hpp"

using feedlane::Error;
using feedlane::os::ForkStamp;
using feedlane::test::in_child;

namespace {

ForkStamp take() {
  ForkStamp stamp;
  Error error;
  REQUIRE(stamp.take(error) == FEEDLANE_OK);
  return stamp;
}

}  // namespace

TEST_CASE("a stamp is valid in the process that took it and invalid in a forked child") {
  const ForkStamp stamp = take();
  CHECK_FALSE(stamp.is_foreign());
  CHECK(in_child([&] { return stamp.is_foreign(); }));
  CHECK_FALSE(stamp.is_foreign());
}

TEST_CASE("a child can take stamps of its own, and its parent's stamps stay invalid in it") {
  const ForkStamp parents = take();
  struct Seen {
    bool taken, own, second, parents;
  };
  const Seen seen = in_child([&]() -> Seen {
    ForkStamp own, second;
    Error error;
    const bool taken = own.take(error) == FEEDLANE_OK && second.take(error) == FEEDLANE_OK;
    return {taken, own.is_foreign(), second.is_foreign(), parents.is_foreign()};
  });
  CHECK(seen.taken);
  CHECK_FALSE(seen.own);
  CHECK_FALSE(seen.second);
  CHECK(seen.parents);
  CHECK_FALSE(parents.is_foreign());
  CHECK_FALSE(take().is_foreign());
}

TEST_CASE("a grandchild distinguishes its parent's and its grandparent's stamps from its own") {
  const ForkStamp grandparents = take();
  struct Seen {
    bool grandparents, parents, own;
  };
  const Seen seen = in_child([&]() -> Seen {
    ForkStamp parents;
    Error error;
    if (parents.take(error) != FEEDLANE_OK) return {};
    return in_child([&]() -> Seen {
      ForkStamp own;
      Error mine;
      if (own.take(mine) != FEEDLANE_OK) return {};
      return {grandparents.is_foreign(), parents.is_foreign(), own.is_foreign()};
    });
  });
  CHECK(seen.grandparents);
  CHECK(seen.parents);
  CHECK_FALSE(seen.own);
}
