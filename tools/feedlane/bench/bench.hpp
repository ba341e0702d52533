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
// Messages of 56 bytes between two processes, beside queues of Boost and others, a pipe and an eventfd.
Report ring(const Options& options);
// The same from several producers to one consumer, beside as many of Boost's queues for one producer.
Report lanes(const Options& options);
// How long messages take that are sent at a fixed rate, beside Boost's queue, a pipe and an eventfd.
Report latency(const Options& options);
// Batches from workers to a trainer, beside as many threads that copy into the same memory.
Report handoff(const Options& options);
// Samples collated into batches, beside loops that do it; and many workers on few processors, beside eventfds.
Report loader(const Options& options);
// What a small sample costs without a hand-over, and where that goes.
Report small(const Options& options);
// The C++ interface, beside the raw C calls.
Report cpp(const Options& options);
// From nothing to the first batch, from epoch to epoch, and to the end.
Report startup(const Options& options);

// Samples on a store with high latency: reads of the tasks ahead, beside those of the task in hand.
Report reads(const Options& options);
// One loader for several consumers, beside as many loaders.
Report sharing(const Options& options);
// Copies to a GPU out of registered slots, beside other memory; and a training loop that hides them.
Report device(const Options& options);
// Why `device` can't be measured here; empty: it can.
std::string device_missing();

}  // namespace bench
