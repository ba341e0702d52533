// SPDX-License-Identifier: Apache-2.0
// How long tasks take, compared with waking a worker: decides whether more workers than are awake are worth it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace feedlane::loader {

class Pace {
 public:
  // A task took so long, and its result was received now.
  void on_result(std::uint64_t work_ns, std::int64_t now_ns) {
    const std::uint64_t work = std::min(work_ns, longest_ns) << fraction_bits;
    mean_ = mean_ == 0 ? work + 1 : mean_ - mean_ / weight + work / weight;
    newest_ns_ = now_ns;
  }

  // Waking a worker costs about as much as its task.
  [[nodiscard]] bool is_short() const { return mean_ != 0 && mean_ >> fraction_bits < short_ns; }
  // With less than a processor for each, workers cost more by their switches than they make.
  [[nodiscard]] bool is_tiny() const { return mean_ != 0 && mean_ >> fraction_bits < tiny_ns; }
  // No result for so long that a task must be longer than the others.
  [[nodiscard]] bool is_stalled(std::int64_t now_ns) const { return now_ns - newest_ns_ > stalled_ns; }

 private:
  static constexpr std::uint64_t short_ns = 50'000;
  static constexpr std::uint64_t tiny_ns = 5'000;
  static constexpr std::int64_t stalled_ns = 100'000;
  static constexpr std::uint64_t longest_ns = 1'000'000;  // one task that is far longer counts as much as this
  static constexpr std::uint64_t weight = 64;
  static constexpr int fraction_bits = 8;

  std::uint64_t mean_ = 0;  // of the last results, in ns with a fraction; 0: there are none
  std::int64_t newest_ns_ = 0;
};

}  // namespace feedlane::loader
