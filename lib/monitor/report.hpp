// SPDX-License-Identifier: Apache-2.0
// The report of an epoch, as text for people.
#pragma once

#include <string>

#include "monitor/snapshot.hpp"
#include "shm/segment.hpp"

namespace feedlane::monitor {

// Describes the interval between two snapshots, its bottleneck and possible improvements, and lists the loader's
// distinct errors. Throws std::bad_alloc.
std::string report(const Snapshot& before, const Snapshot& after, const shm::Segments& segments);

}  // namespace feedlane::monitor
