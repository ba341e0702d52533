// SPDX-License-Identifier: Apache-2.0
// A life that is lived again and again, each time with another of its allocations failing.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "support/allocation.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

namespace feedlane::test {

// The status of a call that finds too little memory once, at most: then it is made again.
template <class F>
std::int32_t call(F&& f) {
  const std::int32_t s = armed(f);
  if (s != FEEDLANE_E_MEMORY) return s;
  CHECK(has_failed());
  return f();
}
#define SUCCEEDS(expression) REQUIRE(call([&] { return (expression); }) == FEEDLANE_OK)

// Ends something: it is gone in any case.
template <class F, class T>
void end(F&& f, T** handle) {
  const std::int32_t s = armed([&] { return f(handle); });
  CHECK((s == FEEDLANE_OK || s == FEEDLANE_E_MEMORY));
  CHECK(*handle == nullptr);
}

// Runs `life` once with each allocation failing that its calls make.
inline void at_every_allocation(const std::function<void()>& life) {
  fail_allocation(-1);
  life();  // what is made once and kept is there
  const std::vector<int> descriptors = open_descriptors();
  for (long nth = 0;; nth++) {
    CAPTURE(nth);
    const std::int64_t before = live_allocations();
    fail_allocation(nth);
    life();
    const bool came_to_it = has_failed();
    fail_allocation(-1);
    CHECK(live_allocations() == before);
    CHECK(open_descriptors() == descriptors);
    CHECK(mappings_of("feedlane-") == 0);
    if (!came_to_it) {
      CHECK_MESSAGE(nth > 0, "there are some");
      return;
    }
    REQUIRE(nth < 5000);
  }
}

}  // namespace feedlane::test
