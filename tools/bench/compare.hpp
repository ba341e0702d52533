// SPDX-License-Identifier: Apache-2.0
// The measurements of build/tools/bench/compare-peers. Each prints a table, unless JSON is asked for, and returns its
// figures.
#pragma once

#include "measure.hpp"

namespace compare {

using bench::Options;
using bench::Report;

// Messages of 56 bytes between two processes, compared with queues of Boost and others, a pipe and an eventfd.
Report ring(const Options& options);
// Messages from several producers to one consumer, compared with one of Boost's queues per producer.
Report lanes(const Options& options);
// How long messages take that are sent at a fixed rate, compared with Boost's queue, a pipe and an eventfd.
Report latency(const Options& options);
// Samples collated into batches, compared with loops; and many workers on few processors, compared with eventfds.
Report loader(const Options& options);
// The cost of a small sample without workers, and its parts.
Report small(const Options& options);
// The C++ interface, compared with the C calls.
Report cpp(const Options& options);
// Samples on a store with high latency: reading ahead, compared with reading for the task in hand.
Report reads(const Options& options);
// One loader for several consumers, compared with one loader for each.
Report sharing(const Options& options);
// Batches that take processor time, with up to 32 workers, compared with processes that hand nothing over.
Report work(const Options& options);

}  // namespace compare
