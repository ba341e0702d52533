// SPDX-License-Identifier: Apache-2.0
// A loader's numbers at one time, and the rates between two times, for `feedlane ls`, `top` and `metrics`.
#pragma once

#include <cstdint>
#include <vector>

#include "loaders.hpp"

namespace observe {

struct Sample {
  std::uint64_t time_ns = 0;  // CLOCK_MONOTONIC
  feedlane_loader_info info{};
  feedlane_stats stats{};
  std::vector<feedlane_worker_stats> workers;  // by id

  [[nodiscard]] int ready_workers() const;
  // Since the loader was created; 0 where its clock is another one, in another time namespace, and ahead.
  [[nodiscard]] std::uint64_t age_ns() const { return time_ns < info.created_ns ? 0 : time_ns - info.created_ns; }
};

Sample take_sample(const feedlane::Monitor& monitor);

// A second, over the time between two samples of one loader.
struct Rates {
  double batches = 0;
  double samples = 0;
  double bytes = 0;
};

Rates rates(const Sample& before, const Sample& after);

// For how long the worker had a task in hand between two samples, ns; at most the time between them.
std::uint64_t busy_ns(const Sample& before, const Sample& after, std::size_t worker);
// Tasks that the worker ended in that time, a second.
double tasks_per_s(const Sample& before, const Sample& after, std::size_t worker);

// One decimal; a rate is never exact.
double rounded(double number);
// "loader 0 of process 12", with its name if it has one.
std::string title(const Found& found, const feedlane_loader_info& info);
// "120/5000", "120/?" if the epoch's length is unknown, "-" if none has begun.
std::string progress(const feedlane_loader_info& info);

}  // namespace observe
