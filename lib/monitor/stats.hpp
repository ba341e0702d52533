// SPDX-License-Identifier: Apache-2.0
// Reads statistics from a loader's segments, for the loader itself and for monitors in other processes. Thread safety:
// any thread.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "feedlane/observe.h"
#include "shm/segment.hpp"

namespace feedlane::monitor {

// The statistics that the counters provide.
feedlane_stats read_counters(const shm::LoaderCounters& counters);
feedlane_stats read_stats(const shm::Segments& segments);
// Reads the rows of worker `w`, which must exist, in data and in control, but not its batch. Returns the id of the task
// in hand; 0: none.
std::uint64_t read_worker_row(const shm::Segments& segments, std::uint32_t w, feedlane_worker_stats& out);
// Adds the batch of the task in hand. `record` is the record of its slot.
void add_batch(const shm::Segments& segments, const feedlane_batch_record& record, std::uint32_t w,
               feedlane_worker_stats& out);
// END past the last worker. If the loader has very many slots, the batch in hand may stay unknown, because the search
// is bounded.
Status read_worker_stats(const shm::Segments& segments, std::int32_t worker, feedlane_worker_stats& out);
// Of one worker, or of all workers for -1. END past the last worker.
Status read_timings(const shm::Segments& segments, std::int32_t worker, feedlane_timings& out);
feedlane_loader_info read_info(const shm::Segments& segments);

}  // namespace feedlane::monitor
