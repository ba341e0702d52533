// SPDX-License-Identifier: Apache-2.0
// Epochs of samplers taken whole, through the C++ interface.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <feedlane/feedlane.hpp>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace feedlane::test {

using Indices = std::vector<std::int64_t>;

// What is left of the epoch, or up to `most` indices of it, `cap` at a time.
inline Indices rest_of(feedlane::Sampler& s, std::size_t cap = 7, std::size_t most = SIZE_MAX) {
  Indices all;
  Indices part(cap);
  while (all.size() < most) {
    const std::size_t got = s.next(std::span(part).first(std::min(cap, most - all.size())));
    if (got == 0) break;
    all.insert(all.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(got));
  }
  return all;
}

inline Indices epoch_of(feedlane::Sampler& s, std::int64_t epoch, std::size_t cap = 7) {
  s.restart(epoch);
  return rest_of(s, cap);
}

// One `next` a batch.
inline std::vector<Indices> rest_of_batches(feedlane::Sampler& s, std::size_t cap) {
  std::vector<Indices> all;
  Indices part(cap);
  while (const std::size_t got = s.next(part))
    all.emplace_back(part.begin(), part.begin() + static_cast<std::ptrdiff_t>(got));
  return all;
}

inline std::vector<Indices> batches_of(feedlane::Sampler& s, std::int64_t epoch, std::size_t cap) {
  s.restart(epoch);
  return rest_of_batches(s, cap);
}

inline Indices count_up(std::int64_t n) {
  Indices all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return all;
}

inline Indices sorted(Indices indices) {
  std::sort(indices.begin(), indices.end());
  return indices;
}

// Environment variables of a launcher, as long as this lives; all others that could be are gone.
class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& values) {
    clear();
    for (const auto& [name, value] : values) (void)::setenv(name.c_str(), value.c_str(), 1);
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;
  ~Variables() { clear(); }

 private:
  static void clear() {
    for (const char* name : {"FEEDLANE_RANK", "FEEDLANE_WORLD_SIZE", "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_STEP_ID"})
      (void)::unsetenv(name);
  }
};

}  // namespace feedlane::test
