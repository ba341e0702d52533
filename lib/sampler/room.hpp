// SPDX-License-Identifier: Apache-2.0
// A check that batch samplers share.
#pragma once

#include "sampler/sampler.hpp"

namespace feedlane::sampler {

// E_ARGUMENT if `cap` is too small for a whole batch.
inline Status check_room(std::uint64_t cap, std::int64_t rows, Error& error) {
  if (cap >= static_cast<std::uint64_t>(rows)) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_ARGUMENT, "cap", cap, rows,
                      "cap is {}, a batch of this sampler needs room for {} indices", cap, rows);
}

}  // namespace feedlane::sampler
