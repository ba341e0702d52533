// SPDX-License-Identifier: Apache-2.0
// Histograms in shared memory, each with one writer and any number of readers, and calculations on copies of them.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "feedlane/observe.h"
#include "shm/layout.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::monitor {

// See shm::histogram_buckets.
inline std::size_t bucket_of(std::uint64_t ns) {
  if (ns < 8) return static_cast<std::size_t>(ns);
  const auto power = static_cast<std::size_t>(std::bit_width(ns)) - 1;
  return std::min(8 * (power - 2) + (ns >> (power - 3) & 7), shm::histogram_buckets - 1);
}

// The shortest duration that a bucket counts.
inline std::uint64_t bucket_start(std::size_t bucket) {
  return bucket < 8 ? bucket : (8 + bucket % 8) << (bucket / 8 - 1);
}

inline void observe(shm::Histogram& histogram, std::uint64_t ns) {
  shm::add(histogram.buckets[bucket_of(ns)]);
  shm::add(histogram.sum_ns, ns);
}

// ---- copies ----

// All buckets of a histogram, or the counts between two copies.
struct Durations {
  std::uint64_t count = 0;
  std::uint64_t sum_ns = 0;
  std::array<std::uint64_t, shm::histogram_buckets> buckets{};
};

// Adds the histogram's counts. Relaxed: a reader may see some of the writer's last additions and miss others.
inline void add_to(Durations& sum, const shm::Histogram& histogram) {
  for (std::size_t b = 0; b < shm::histogram_buckets; b++) {
    const std::uint64_t count = histogram.buckets[b].load(std::memory_order_relaxed);
    sum.buckets[b] += count;
    sum.count += count;
  }
  sum.sum_ns += histogram.sum_ns.load(std::memory_order_relaxed);
}

inline void add_to(Durations& sum, const Durations& other) {
  for (std::size_t b = 0; b < shm::histogram_buckets; b++) sum.buckets[b] += other.buckets[b];
  sum.count += other.count;
  sum.sum_ns += other.sum_ns;
}

// Converts to one bucket per power of two, as users see it.
inline feedlane_histogram by_powers(const Durations& from) {
  feedlane_histogram to{};
  for (std::size_t b = 0; b < shm::histogram_buckets; b++) {
    const auto power = static_cast<std::size_t>(std::bit_width(bucket_start(b)));
    to.buckets[std::min<std::size_t>(power, FEEDLANE_HISTOGRAM_BUCKETS - 1)] += from.buckets[b];
  }
  to.count = from.count;
  to.sum_ns = from.sum_ns;
  return to;
}

// 0 if nothing was counted.
inline double mean_ns(const Durations& histogram) {
  return histogram.count == 0 ? 0 : static_cast<double>(histogram.sum_ns) / static_cast<double>(histogram.count);
}

// The shortest duration in ns that at least the given part (0 to 1) of the counted durations does not exceed; 0 if
// nothing was counted. Assumes that durations are spread evenly within a bucket, so the error is at most an eighth. The
// library and its commands compute all percentiles of a loader with this function.
inline double quantile(const Durations& histogram, double part) {
  const double wanted = part * static_cast<double>(histogram.count);
  double below = 0;
  for (std::size_t b = 0; b < shm::histogram_buckets; b++) {
    const auto here = static_cast<double>(histogram.buckets[b]);
    if (here != 0 && below + here >= wanted) {
      const auto low = static_cast<double>(bucket_start(b));
      // Each bucket below 8 counts a single duration, so 0 stays 0.
      return b < 8 ? low : low + static_cast<double>(bucket_start(b + 1) - bucket_start(b)) * (wanted - below) / here;
    }
    below += here;
  }
  return 0;
}

inline feedlane_percentiles percentiles(const Durations& histogram) {
  const auto at = [&](double part) { return static_cast<std::uint64_t>(std::llround(quantile(histogram, part))); };
  return {at(0.5), at(0.9), at(0.99)};
}

}  // namespace feedlane::monitor
