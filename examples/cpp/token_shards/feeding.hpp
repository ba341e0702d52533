// SPDX-License-Identifier: Apache-2.0
// The trainer's side: where it would train, it adds up what it sees.
#pragma once

#include <cstdint>

#include "checkpoint.hpp"
#include "options.hpp"

namespace tokens {

struct Totals {
  int64_t tokens = 0;  ///< of this process
  double seconds = 0;  ///< from its first batch on
};

/// Runs what is left of all epochs, on from `checkpoint`, which it keeps up to date and saves. FEEDLANE_OK or
/// FEEDLANE_INTERRUPTED; what fails throws.
int32_t feed(const Options& options, int64_t windows, Checkpoint& checkpoint, Totals& totals);

}  // namespace tokens
