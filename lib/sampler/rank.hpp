// SPDX-License-Identifier: Apache-2.0
// The rank of this process and the number of ranks, by the launcher's environment variables. MPI is not linked.
#pragma once

#include <cstdint>
#include <functional>

#include "base/error.hpp"

namespace feedlane::sampler {

// Returns the value of a variable, or nullptr: std::getenv, or a test's function.
using Environment = std::function<const char*(const char* name)>;

struct RankSource {
  std::int32_t rank = 0;
  std::int32_t world = 1;
  const char* source = "none";
  char warning[384] = {};  // one line if another source differs, else empty
};

// The first source that is present: Feedlane's own variables, torchrun, Open MPI, MVAPICH, PMI, Flux, Slurm; else rank 0 of 1.
// Both numbers come from one source. E_ARGUMENT names the variable that is missing or no number in its range; also if the only
// source is a launcher that sets the rank but not the number of ranks (PALS, PMIx).
Status detect_rank(const Environment& environment, RankSource& out, Error& error);

}  // namespace feedlane::sampler
