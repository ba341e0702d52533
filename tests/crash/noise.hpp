// SPDX-License-Identifier: Apache-2.0
// What processes that go wild at random share.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

#include "stress/shared.hpp"

namespace wild {

constexpr int exit_writable = 9;  // the status of a process that could make a mapping writable

inline std::uint64_t any_word(stress::Random& random) {
  const std::uint64_t near = random(64), any = random(UINT64_MAX);
  switch (random(5)) {
    case 0: return 0;
    case 1: return UINT64_MAX - near;
    case 2: return near;
    default: return any;
  }
}

inline void break_events(const std::vector<int>& events, stress::Random& random) {
  for (const int event : events) {
    const std::uint64_t most = UINT64_MAX - 1;
    (void)::fcntl(event, F_SETFL, O_NONBLOCK);
    (void)!::write(event, &most, sizeof most);
    if (random(2) == 0) (void)::fcntl(event, F_SETFL, 0);
  }
}

}  // namespace wild
