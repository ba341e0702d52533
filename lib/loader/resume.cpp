// SPDX-License-Identifier: Apache-2.0
// Reads a saved state and checks that this loader can resume from it.
#include "loader/resume.hpp"

#include <algorithm>
#include <utility>

namespace feedlane::loader {

Status refuse_difference(const char* argument, Number found, Number needed, const char* rule, Error& error) {
  return error.refuse(FEEDLANE_E_ARGUMENT, argument, found, needed, "{} is {}, but the state was saved with {}: {}",
                      argument, found.value, needed.value, rule);
}

Status read_resume(Config& config, Order& order, Error& error) {
  if (config.state.empty()) return FEEDLANE_OK;
  checkpoint::SavedState state;
  Status s = checkpoint::read_state(config.state, state, error);
  if (s != FEEDLANE_OK) return s;
  if (state.iterable != config.iterable)
    return refuse_difference("config.iterable", config.iterable, state.iterable, "the kind of data set must not change",
                             error);
  if (s = order.check_state(state, error); s != FEEDLANE_OK) return s;
  if (config.has_seed && config.seed != state.base_seed)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.seed", config.seed, state.base_seed,
                        "the seed is {}, but the state was saved with {}: omit the seed to use the saved one",
                        config.seed, state.base_seed);
  config.seed = state.base_seed;
  if (s = order.try_resume(state, error); s != FEEDLANE_OK) return s;
  order.resume() = std::move(state);
  return FEEDLANE_OK;
}

std::uint64_t largest_shard_state(const checkpoint::Progress& progress) {
  std::uint64_t bytes = 0;
  for (const checkpoint::ShardProgress& shard : progress.shards)
    if (shard.state != nullptr) bytes = std::max<std::uint64_t>(bytes, shard.state->size());
  return bytes;
}

}  // namespace feedlane::loader
