// SPDX-License-Identifier: Apache-2.0
// What bounded a run between two snapshots of its figures.
#pragma once

#include "feedlane/observe.h"
#include "monitor/snapshot.hpp"

namespace feedlane::monitor {

// May read the state of a worker's process from /proc. Throws std::bad_alloc.
feedlane_diagnosis diagnose(const Snapshot& before, const Snapshot& after);

}  // namespace feedlane::monitor
