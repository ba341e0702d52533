// SPDX-License-Identifier: Apache-2.0
// FEEDLANE_TEST_SLOWNESS: how many times as long a test may wait before it calls that a failure. tools/check sets it by the
// load of the machine.
#pragma once

#include <cstdlib>

namespace feedlane::test {

inline int slowness() {
  const char* const text = std::getenv("FEEDLANE_TEST_SLOWNESS");
  const int times = text != nullptr ? std::atoi(text) : 1;
  return times < 1 ? 1 : times;
}

}  // namespace feedlane::test
