// SPDX-License-Identifier: Apache-2.0
// Memory that is too short, at an allocation of the test's choice: operator new of the whole process, the library included.
#pragma once

#include <cstdint>

namespace feedlane::test {

// The allocation number `nth` of those made in `armed` from now on fails; -1: none.
void fail_allocation(long nth);
// Whether it has come to that.
bool has_failed();
// How many there are and aren't freed yet.
std::int64_t live_allocations();
// How many there were.
std::int64_t all_allocations();

void arm(bool on);
template <class F>
std::int32_t armed(F&& f) {
  arm(true);
  const std::int32_t status = f();
  arm(false);
  return status;
}

}  // namespace feedlane::test
