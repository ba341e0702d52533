// SPDX-License-Identifier: Apache-2.0
// The number of batches in flight per worker: as configured, or, with FEEDLANE_PREFETCH_AUTO, as many as shorten the
// trainer's waits.
//
// Used by the loader's thread only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "loader/stamps.hpp"
#include "shm/layout.hpp"

namespace feedlane::loader {

class Prefetch {
 public:
  // Batches per worker with FEEDLANE_PREFETCH_AUTO: at first, and at most if slots suffice. Every worker's rings have
  // room for the batches of all workers, so the total has a limit too.
  static constexpr std::uint32_t first = 2;
  static constexpr std::uint32_t most = 64;
  static constexpr std::uint32_t most_of_all = 1024;
  static constexpr std::uint32_t most_for(std::uint32_t workers) {
    return std::clamp(most_of_all / std::max(workers, 1U), first, most);
  }

  // `limit`: the number that the slots suffice for; equal to `start` if the number is fixed. Monitors read it from
  // `told`.
  void use(std::uint32_t workers, std::uint32_t start, std::uint32_t limit, shm::Word64& told);

  [[nodiscard]] std::uint32_t per_worker() const { return per_worker_; }
  // The most batches in flight: requested and not yet yielded.
  [[nodiscard]] std::uint32_t window() const { return workers_ * per_worker_; }

  // A batch was yielded. The wait for an epoch's first batch does not count, because the window does not cause it.
  void on_yield(const Stamps::Exposure& exposure);

 private:
  void judge(std::uint64_t wait_ns);
  void set(std::uint32_t per_worker);

  std::uint32_t workers_ = 0;
  std::uint32_t per_worker_ = 0;
  std::uint32_t limit_ = 0;
  bool is_chosen_ = false;  // adapts to the waits; false: fixed
  shm::Word64* told_ = nullptr;

  // The current period.
  std::uint64_t waited_ns_ = 0;
  std::uint64_t elapsed_ns_ = 0;
  std::int64_t last_ns_ = 0;    // when the previous batch was yielded
  std::uint32_t batches_ = 0;   // counted in the period
  std::uint32_t settling_ = 0;  // batches to skip first: they were requested with another window

  // The last growth. It is on trial until the period after it has ended.
  bool is_on_trial_ = false;
  std::uint32_t before_ = 0;          // batches per worker before it
  std::uint64_t wait_before_ns_ = 0;  // the trainer's wait for a batch before it
  std::uint32_t rest_ = 0;            // periods until the next trial
  std::uint32_t next_rest_ = 0;
};

}  // namespace feedlane::loader
