// SPDX-License-Identifier: Apache-2.0
// The bottleneck of a run between two snapshots of its statistics.
#pragma once

#include "feedlane/observe.h"
#include "monitor/snapshot.hpp"

namespace feedlane::monitor {

// May read the state of the workers' and the trainer's processes from /proc. Throws std::bad_alloc.
feedlane_diagnosis diagnose(const Snapshot& before, const Snapshot& after);

}  // namespace feedlane::monitor
