// SPDX-License-Identifier: Apache-2.0
// Records yielded batches.
#include "checkpoint/progress.hpp"

#include <algorithm>

namespace feedlane::checkpoint {

void Progress::yield(const YieldedBatch& batch) {
  ahead.push_back(batch);
  close_up();
}

// Moves `batches` over entries of `ahead` that follow it directly. Stops at a batch that is not drawn yet, because its sampler
// state is unknown.
void Progress::close_up() {
  for (bool moved = true; moved;) {
    const auto next = std::find_if(ahead.begin(), ahead.end(),
                                   [&](const YieldedBatch& y) { return y.batch == batches && y.is_drawn; });
    moved = next != ahead.end();
    if (!moved) break;
    batches++;
    positions += next->rows;
    wanted += next->wanted;
    sampler_state = std::move(next->sampler_state);
    *next = std::move(ahead.back());
    ahead.pop_back();
  }
}

bool Progress::has(std::int64_t batch) const {
  return batch < batches ||
         std::any_of(ahead.begin(), ahead.end(), [&](const YieldedBatch& y) { return y.batch == batch; });
}

void Progress::set_sampler_state(std::int64_t batch, Blob state) {
  if (batch == batches - 1) sampler_state = state;
  for (YieldedBatch& y : ahead) {
    if (y.batch != batch) continue;
    y.sampler_state = state;
    y.is_drawn = true;
  }
  close_up();
}

}  // namespace feedlane::checkpoint
