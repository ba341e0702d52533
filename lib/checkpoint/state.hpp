// SPDX-License-Identifier: Apache-2.0
// A loader's progress as bytes, for checkpoints. The format is described in docs/state.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/progress.hpp"

namespace feedlane::checkpoint {

// The contents of a saved state.
struct SavedState {
  bool iterable = false;
  std::uint64_t base_seed = 0;
  std::int64_t batch_size = 0;  // 0: the sampler makes the batches
  std::int64_t ranks = 1;       // number of ranks that share the order, or the iterable data set
  std::int64_t rank = 0;        // only iterable
  std::vector<std::byte> sampler;
  Progress progress;
};

void write_state(const SavedState& state, std::vector<std::byte>& out);
// E_CORRUPT: damaged, truncated, or not a saved state. E_ABI: another format version.
Status read_state(std::span<const std::byte> bytes, SavedState& out, Error& error);

}  // namespace feedlane::checkpoint
