// SPDX-License-Identifier: Apache-2.0
// Populates mappings of shared memory in several threads, because one thread clears memory only as fast as one
// processor writes.
#pragma once

#include <cstdint>
#include <vector>

#include "os/limits.hpp"

namespace feedlane::os {

struct Stretch {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Populates stretches of a mapping, each extended to whole units, in at most 8 threads that end before this returns.
// `unit`: the size of a page or of a huge page. A reservation must follow, because pages for which the system had no
// memory are still missing, and kernels before 5.14 populate nothing.
void populate(void* mapping, const std::vector<Stretch>& stretches, std::uint64_t unit, const SystemFiles& files);

}  // namespace feedlane::os
