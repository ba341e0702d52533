// SPDX-License-Identifier: Apache-2.0
// A guest that connects by path before its host sees the end of another, whose place it needs.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>

#include "events.hpp"
#include "process.hpp"

namespace feedlane::test {

// `attach(f, then)` attaches in a child, calls `then` and leaves. `look()` has the host, with one place, handle what has
// come; it returns true if nothing is left.
template <class Attach, class Look>
void check_succession(const Attach& attach, const Look& look) {
  const auto becomes = [](const Child& child, char state) {
    return eventually([&] { return state_of(child.pid()) == state; });
  };
  for (const bool is_accepted : {false, true}) {
    CAPTURE(is_accepted);
    const Gate accepted;
    Child first({accepted.fd()}, [&](Findings& f) {
      attach(f, [&] {
        accepted.open();
        (void)::pause();
      });
    });
    REQUIRE(becomes(first, 'S'));  // it has asked
    if (is_accepted) {
      REQUIRE(eventually([&] { return look() && wait_readable(accepted.fd(), 0); }));
    } else {
      REQUIRE(::kill(first.pid(), SIGSTOP) == 0);
      REQUIRE(becomes(first, 'T'));
      REQUIRE(eventually(look));  // it has its welcome
    }
    Child second({}, [&](Findings& f) { attach(f, [] {}); });
    REQUIRE(becomes(second, 'S'));
    REQUIRE(::kill(first.pid(), SIGKILL) == 0);
    REQUIRE(becomes(first, 'Z'));
    CHECK(eventually([&] { return look() && !is_running(second.pid()); }));
    CHECK(second.finish() == "");
  }
}

}  // namespace feedlane::test
