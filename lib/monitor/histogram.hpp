// SPDX-License-Identifier: Apache-2.0
// Histograms in shared memory: one writer, any number of readers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "feedlane/observe.h"
#include "shm/layout.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::monitor {

inline void observe(shm::Histogram& histogram, std::uint64_t ns) {
  const std::size_t bucket = std::min<std::size_t>(std::bit_width(ns), shm::histogram_buckets - 1);
  shm::add(histogram.buckets[bucket]);
  shm::add(histogram.sum_ns, ns);
}

// Adds what it has counted. Relaxed: a reader may see some of the writer's last additions and miss others.
inline void add_to(feedlane_histogram& sum, const shm::Histogram& histogram) {
  for (std::size_t b = 0; b < shm::histogram_buckets; b++) {
    const std::uint64_t count = histogram.buckets[b].load(std::memory_order_relaxed);
    sum.buckets[b] += count;
    sum.count += count;
  }
  sum.sum_ns += histogram.sum_ns.load(std::memory_order_relaxed);
}

}  // namespace feedlane::monitor
