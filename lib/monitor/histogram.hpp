// SPDX-License-Identifier: Apache-2.0
// Histograms: in shared memory, with one writer and any number of readers; and what follows from copies of them.
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

// ---- of copies ----

// All buckets of a histogram, or what was counted between two copies.
struct Durations {
  std::uint64_t count = 0;
  std::uint64_t sum_ns = 0;
  std::array<std::uint64_t, shm::histogram_buckets> buckets{};
};

// Adds what it has counted. Relaxed: a reader may see some of the writer's last additions and miss others.
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

// With a bucket for each power of two, as users see it.
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

// 0: nothing was counted.
inline double mean_ns(const Durations& histogram) {
  return histogram.count == 0 ? 0 : static_cast<double>(histogram.sum_ns) / static_cast<double>(histogram.count);
}

// How many ns the given part (0 to 1) of what was counted took at most, with the durations of a bucket evenly spread in it; so an
// eighth at most from the truth. 0: nothing was counted. Every percentile that the library or a command shows is this one.
inline double quantile(const Durations& histogram, double part) {
  const double wanted = part * static_cast<double>(histogram.count);
  double below = 0;
  for (std::size_t b = 0; b < shm::histogram_buckets; b++) {
    const auto here = static_cast<double>(histogram.buckets[b]);
    if (here != 0 && below + here >= wanted) {
      const auto low = static_cast<double>(bucket_start(b));
      // A bucket below 8 counts one duration, and 0 stays 0.
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
