// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "loader/sampler.hpp"

namespace feedlane::loader {

// Whether a batch sampler's whole batch fits.
inline Status check_room(std::uint64_t cap, std::int64_t rows, Error& error) {
  if (cap >= static_cast<std::uint64_t>(rows)) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_ARGUMENT, "cap", static_cast<std::int64_t>(cap), rows,
                      "cap is %llu, a batch of this sampler needs room for %lld indices",
                      static_cast<unsigned long long>(cap), static_cast<long long>(rows));
}

}  // namespace feedlane::loader
