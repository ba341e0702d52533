// SPDX-License-Identifier: Apache-2.0
// Records yielded batches.
#include "checkpoint/progress.hpp"

#include <algorithm>

namespace feedlane::checkpoint {
namespace {

// The first entry whose number is at most `batch`. Entries are in descending order.
template <class Ahead>
auto place_of(Ahead& ahead, std::int64_t batch) {
  return std::partition_point(ahead.begin(), ahead.end(), [=](const YieldedBatch& y) { return y.batch > batch; });
}

}  // namespace

void Progress::yield(const YieldedBatch& batch) {
  ahead.insert(place_of(ahead, batch.batch), batch);
  close_up();
}

// Advances `batches` over the entries of `ahead` that directly follow it. Stops at a batch that is not drawn yet,
// because the sampler's state after it is unknown.
void Progress::close_up() {
  for (; !ahead.empty() && ahead.back().batch == batches && ahead.back().is_drawn; ahead.pop_back()) {
    batches++;
    positions += ahead.back().rows;
    wanted += ahead.back().wanted;
    sampler_state = std::move(ahead.back().sampler_state);
  }
}

bool Progress::has(std::int64_t batch) const {
  const auto found = place_of(ahead, batch);
  return batch < batches || (found != ahead.end() && found->batch == batch);
}

void Progress::set_sampler_state(std::int64_t batch, Blob state) {
  if (batch == batches - 1) sampler_state = state;
  if (const auto found = place_of(ahead, batch); found != ahead.end() && found->batch == batch) {
    found->sampler_state = std::move(state);
    found->is_drawn = true;
  }
  close_up();
}

}  // namespace feedlane::checkpoint
