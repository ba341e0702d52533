// SPDX-License-Identifier: Apache-2.0
// Histograms: in shared memory, with one writer and any number of readers; and what follows from copies of them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
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

// ---- of copies ----

inline void add_to(feedlane_histogram& sum, const feedlane_histogram& histogram) {
  for (std::size_t b = 0; b < shm::histogram_buckets; b++) sum.buckets[b] += histogram.buckets[b];
  sum.count += histogram.count;
  sum.sum_ns += histogram.sum_ns;
}

// 0: nothing was counted.
inline double mean_ns(const feedlane_histogram& histogram) {
  return histogram.count == 0 ? 0 : static_cast<double>(histogram.sum_ns) / static_cast<double>(histogram.count);
}

// About how many ns the given part (0 to 1) of what was counted took at most: evenly spread within its bucket.
inline double quantile(const feedlane_histogram& histogram, double part) {
  const double wanted = part * static_cast<double>(histogram.count);
  double below = 0;
  for (std::size_t b = 0; b < shm::histogram_buckets; b++) {
    const auto here = static_cast<double>(histogram.buckets[b]);
    if (here != 0 && below + here >= wanted) {
      const double low = b == 0 ? 0 : std::ldexp(1.0, static_cast<int>(b) - 1);
      return low + low * (wanted - below) / here;
    }
    below += here;
  }
  return 0;
}

}  // namespace feedlane::monitor
