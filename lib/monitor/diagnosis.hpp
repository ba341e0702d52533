// SPDX-License-Identifier: Apache-2.0
// What bounded a run between two snapshots of its figures.
#pragma once

#include <string>

#include "feedlane/observe.h"
#include "monitor/snapshot.hpp"

namespace feedlane::monitor {

// May read the state of a worker's process from /proc. Throws std::bad_alloc.
feedlane_diagnosis diagnose(const Snapshot& before, const Snapshot& after);

// A duration for people: "250 us", "1.20 s".
std::string duration(double ns);
// About how many ns the given part (0 to 1) of what a histogram counted took at most: evenly spread within its bucket.
double quantile(const feedlane_histogram& histogram, double part);

}  // namespace feedlane::monitor
