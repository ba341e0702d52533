// SPDX-License-Identifier: Apache-2.0
// Which process of how many this is, by what its launcher left in the environment. No MPI is linked.
#pragma once

#include <cstdint>
#include <functional>

#include "base/error.hpp"

namespace feedlane::sampler {

// The value of a variable, or NULL: std::getenv, or what a test says.
using Environment = std::function<const char*(const char* name)>;

struct RankSource {
  std::int32_t rank = 0;
  std::int32_t world = 1;
  const char* source = "none";
  char warning[384] = {};  // one line if another source disagrees, else empty
};

// The first source that is there: Feedlane's own variables, torchrun, Open MPI, MVAPICH, PMI, Flux, Slurm; else 0 of 1. Both
// numbers come from one source: E_ARGUMENT, with the name of the variable, for one that is missing or says no number in its
// range, and where there is a rank alone by a launcher that doesn't say of how many (PALS, PMIx).
Status detect_rank(const Environment& environment, RankSource& out, Error& error);

}  // namespace feedlane::sampler
