// SPDX-License-Identifier: Apache-2.0
// The measurements of `feedlane bench`. Each prints a table, unless JSON is asked for, and returns its figures.
#pragma once

#include <string>

#include "measure.hpp"

namespace bench {

// The bare hand-over of a line between two processes.
Report floor(const Options& options);
// Nanoseconds of the same in a moment: whether two processors share a core can change while a program runs.
double line_ns(const Options& options);
// Messages of 56 bytes through a ring between two processes, compared with the line.
Report ring(const Options& options);
// Batches from workers to a trainer, beside as many threads that copy into the same memory.
Report handoff(const Options& options);
// Gets of an entry of an arena, and entries from members to the owner, beside as many threads that copy.
Report arena(const Options& options);
// Adds how long a member takes to know of its owner's end.
void arena_end(const Options& options, Report& report);
// From nothing to the first batch, from epoch to epoch, and to the end.
Report startup(const Options& options);
// Copies to a GPU out of registered slots, beside other memory; and a training loop that hides them.
Report device(const Options& options);
// Why `device` can't be measured here; empty: it can.
std::string device_missing();

}  // namespace bench
