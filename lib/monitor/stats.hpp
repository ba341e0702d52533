// SPDX-License-Identifier: Apache-2.0
// Statistics read from a loader's segments, for the loader itself and for a monitor in another process. Thread safety: any
// thread.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "feedlane/observe.h"
#include "shm/segment.hpp"

namespace feedlane::monitor {

// What the counters alone tell.
feedlane_stats read_counters(const shm::LoaderCounters& counters);
feedlane_stats read_stats(const shm::Segments& segments);
// What worker `w`, which must exist, and its row in control say; without its batch. The task that it has in hand; 0: none.
std::uint64_t read_worker_row(const shm::Segments& segments, std::uint32_t w, feedlane_worker_stats& out);
// Adds the batch of the task in hand, of which `record` is the slot's.
void add_batch(const shm::Segments& segments, const feedlane_batch_record& record, std::uint32_t w,
               feedlane_worker_stats& out);
// Of a loader with very many slots the batch in hand may stay unknown, because the search is bounded. END past the last worker.
Status read_worker_stats(const shm::Segments& segments, std::int32_t worker, feedlane_worker_stats& out);
// Of one worker, or of all with -1. END past the last worker.
Status read_timings(const shm::Segments& segments, std::int32_t worker, feedlane_timings& out);
feedlane_loader_info read_info(const shm::Segments& segments);

}  // namespace feedlane::monitor
