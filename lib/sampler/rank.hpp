// SPDX-License-Identifier: Apache-2.0
// Finds the rank of this process and the number of ranks in the launcher's environment variables. MPI is not linked.
#pragma once

#include <cstdint>
#include <functional>

#include "base/error.hpp"

namespace feedlane::sampler {

// Returns the value of a variable, or nullptr: std::getenv, or a function of a test.
using Environment = std::function<const char*(const char* name)>;

struct RankSource {
  std::int32_t rank = 0;
  std::int32_t world = 1;
  const char* source = "none";
  char warning[384] = {};  // one line if another source differs, otherwise empty
};

// Uses the first source that is present: Feedlane's own variables, torchrun, Open MPI, MVAPICH, PMI, Flux, Slurm;
// without any, rank 0 of 1. Both numbers come from this source. E_ARGUMENT names a variable that is missing, or is not
// a number in its range. E_ARGUMENT too if the only source is a launcher that sets the rank but not the number of ranks
// (PALS, PMIx).
Status detect_rank(const Environment& environment, RankSource& out, Error& error);

// The rank that a sampler's configuration requests; its numbers were checked. If `world` is not 0: `rank` of `world`.
// Otherwise: the detected rank or, with `detect_off`, rank 0 of 1.
template <class Config>
Status choose_rank(const Config& config, const Environment& environment, RankSource& out, Error& error) {
  if (config.world == 0 && config.detect_off == 0) return detect_rank(environment, out, error);
  if (config.world > 0) {
    out.rank = config.rank;
    out.world = config.world;
  }
  out.source = config.world > 0 ? "config" : "off";
  return FEEDLANE_OK;
}

}  // namespace feedlane::sampler
