// SPDX-License-Identifier: Apache-2.0
// Populates mappings of shared memory by several threads: the kernel clears it as fast as one processor writes.
#pragma once

#include <cstdint>
#include <vector>

#include "os/limits.hpp"

namespace feedlane::os {

struct Stretch {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Populates these stretches of a mapping, each made larger to whole units, by at most 8 threads that end before this returns. `unit`:
// the size of a page or of a huge one. A reservation must follow: what the system had no memory for is still missing, and kernels before
// 5.14 populate nothing here.
void populate(void* mapping, const std::vector<Stretch>& stretches, std::uint64_t unit, const SystemFiles& files);

}  // namespace feedlane::os
