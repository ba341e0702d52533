// SPDX-License-Identifier: Apache-2.0
// What becomes of a sample that failed: it is retried, another sample takes its place, it is skipped, or its batch fails.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/error.hpp"
#include "shm/layout.hpp"

namespace feedlane::dataset {

// Maximum number of substitutes for one sample.
constexpr std::uint32_t max_substitutes = 16;
// Maximum backoff before a retry.
constexpr std::uint64_t longest_backoff_ns = std::uint64_t{3600} * 1'000'000'000;

// The attempts at the sample in progress, or at the complete batch.
struct Attempts {
  std::uint32_t retries = 0;        // of the current index
  std::uint32_t total_retries = 0;  // of all indices tried for this sample
  std::uint32_t substitutes = 0;
  std::int64_t substitute = 0;                      // the newest
  Status code = FEEDLANE_OK;                        // of the newest failure, which was retried or substituted
  char text[sizeof(shm::SampleRecord::text)] = {};  // of that failure

  // True if nothing has failed.
  [[nodiscard]] bool is_first() const { return total_retries == 0 && substitutes == 0; }
  void note(Status status, const char* why) {
    code = status;
    copy_text(text, sizeof text, why);
  }
  // Leaves `code` and `text`, which are valid only after a failure.
  void reset() {
    retries = total_retries = substitutes = 0;
    substitute = 0;
  }
  [[nodiscard]] shm::SampleOutcome outcome() const {
    return substitutes != 0 ? shm::SampleOutcome::substituted : shm::SampleOutcome::retried;
  }
};

// The sample that code which makes complete batches has reported last.
struct FailingSample {
  static constexpr std::uint64_t none = UINT64_MAX;
  std::uint64_t position = none;
  Attempts attempts;

  void drop() {
    position = none;
    attempts.reset();
  }
};

enum class Decision { retry, substitute, skip, fail };

// The wait before the retry that was just decided.
inline std::int64_t backoff_ns(const shm::Geometry& geometry, const Attempts& attempts) {
  const std::uint64_t first = std::min(geometry.retry_backoff_ns, longest_backoff_ns);
  return static_cast<std::int64_t>(std::min(first << std::min(attempts.retries - 1, 20U), longest_backoff_ns));
}

inline bool decide_retry(const shm::Geometry& geometry, Attempts& attempts, bool is_transient) {
  if (!is_transient || attempts.retries >= geometry.retries) return false;
  attempts.retries++;
  attempts.total_retries++;
  return true;
}

// Applies the loader's policies to a sample that failed. `choose(other)` asks the data set for a substitute and returns
// whether there is one.
template <class F>
Decision decide(const shm::Geometry& geometry, Attempts& attempts, bool is_transient, F&& choose) {
  if (decide_retry(geometry, attempts, is_transient)) return Decision::retry;
  std::int64_t other = 0;
  if ((geometry.flags & shm::geometry_substitute) != 0 && attempts.substitutes < max_substitutes && choose(other)) {
    attempts.substitutes++;
    attempts.substitute = other;
    attempts.retries = 0;
    return Decision::substitute;
  }
  return (geometry.flags & shm::geometry_skip) != 0 ? Decision::skip : Decision::fail;
}

}  // namespace feedlane::dataset
