// SPDX-License-Identifier: Apache-2.0
// Argument checks that samplers share.
#pragma once

#include <span>

#include "sampler/sampler.hpp"

namespace feedlane::sampler {

// E_ARGUMENT if `cap` is too small for a complete batch.
inline Status check_room(std::uint64_t cap, std::int64_t rows, Error& error) {
  if (cap >= static_cast<std::uint64_t>(rows)) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_ARGUMENT, "cap", cap, rows,
                      "cap is {}: must be at least {}, the size of this sampler's batches", cap, rows);
}

struct Ranged {
  const char* name;
  std::int64_t value, least, most;
};
// E_ARGUMENT for the first number that is out of its range.
inline Status check_ranges(std::span<const Ranged> numbers, Error& error) {
  for (const Ranged& n : numbers)
    if (n.value < n.least || n.value > n.most)
      return error.refuse(FEEDLANE_E_ARGUMENT, n.name, n.value, n.value < n.least ? n.least : n.most,
                          "{} is {}: must be between {} and {}", n.name, n.value, n.least, n.most);
  return FEEDLANE_OK;
}

inline Status check_flag(const char* name, std::int32_t value, Error& error) {
  return check_ranges({{{name, value, 0, 1}}}, error);
}

}  // namespace feedlane::sampler
