// SPDX-License-Identifier: Apache-2.0
// A test case that can't run on this machine. doctest has no word for that, so the case prints a line, which
// tools/testlog.py counts as a skipped test and tools/check repeats.
#pragma once

#include <doctest/doctest.h>

#include <cstdio>

namespace feedlane::test {

// Return from the test case after this.
inline void skip(const char* why) {
  const auto* const now = doctest::getContextOptions()->currentTest;
  std::printf("\nskipped case: %s: %s\n", now != nullptr ? now->m_name : "?", why);
  (void)std::fflush(stdout);  // else a child that is forked later prints it again
}

}  // namespace feedlane::test
