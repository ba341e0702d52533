// SPDX-License-Identifier: Apache-2.0
// The measurements of `feedlane bench`, each printed as a table or as JSON.
#pragma once

#include "measure.hpp"

namespace bench {

// The bare hand-over of a line between two processes.
Json floor(const Options& options);
// Messages of 56 bytes between two processes, beside Boost's queues, a pipe and an eventfd.
Json ring(const Options& options);
// The same from several producers to one consumer.
Json lanes(const Options& options);
// Batches from workers to a trainer, beside a copy by one process into the same memory.
Json handoff(const Options& options);
// Samples collated into batches, beside a loop that does it; and many workers on few processors, beside eventfds.
Json loader(const Options& options);
// The C++ interface, beside the raw C calls.
Json cpp(const Options& options);
// From nothing to the first batch, from epoch to epoch, and to the end.
Json startup(const Options& options);

}  // namespace bench
