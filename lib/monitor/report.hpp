// SPDX-License-Identifier: Apache-2.0
// The report of an epoch, for people.
#pragma once

#include <string>

#include "monitor/snapshot.hpp"
#include "shm/segment.hpp"

namespace feedlane::monitor {

// What happened between two snapshots, what bounded it, what to change, and the errors that occurred. Throws std::bad_alloc.
std::string report(const Snapshot& before, const Snapshot& after, const shm::Segments& segments);

}  // namespace feedlane::monitor
