// SPDX-License-Identifier: Apache-2.0
// The trainer's side: what it would train on, it only counts.
#pragma once

#include <cstdint>

#include "options.hpp"
#include "recipe.hpp"

namespace images {

struct Totals {
  int64_t images = 0;
  uint64_t skipped = 0;
  uint64_t substituted = 0;
  double seconds = 0;  ///< from the first batch of all to the end: workers are there by then
  int64_t timed = 0;   ///< images that came after that one
  uint64_t checksum = 0;
};

/// Runs all epochs. FEEDLANE_OK or FEEDLANE_INTERRUPTED; what fails throws.
int32_t feed(const Options& options, const Recipe& recipe, int64_t samples, Totals& totals);

}  // namespace images
