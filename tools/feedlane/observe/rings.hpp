// SPDX-License-Identifier: Apache-2.0
// Finds the rings of this user's processes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loaders.hpp"

namespace observe {

// A ring at two times.
struct Ring {
  std::int64_t pid = 0;
  int nth = 0;  // among the process's rings
  std::string program;
  feedlane_ring_info before{};
  feedlane_ring_info after{};
};

// The rings of `pid`, or of all processes if it is 0. One that a process and its descendants hold, which inherit descriptors, is listed for the ancestor
// alone. A sender that is no descendant of the receiver has the same ring, and is listed too. `unreadable` is added to.
std::vector<Ring> find_rings(std::int64_t pid, std::vector<Unreadable>& unreadable);
// Reads it again. `after` stays if it has ended meanwhile.
void read_again(Ring& ring);

}  // namespace observe
