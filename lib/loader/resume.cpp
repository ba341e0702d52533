// SPDX-License-Identifier: Apache-2.0
// How far an epoch has come, as a state that a checkpoint can hold, and going on from there.
#include <algorithm>

#include "loader/loader.hpp"

namespace feedlane::loader {

Status Loader::state(std::uint64_t token, std::vector<std::byte>& out, Error& error) {
  if (resume_ && progress_.epoch < 0 && token == 0) {
    out = config_.state;  // nothing has happened since
    return FEEDLANE_OK;
  }
  const Progress* progress = &progress_;
  if (token != 0) {
    std::uint32_t slot = 0;
    if (!slots_.is_held(token, slot))
      return error.refuse(FEEDLANE_E_STALE, "token", static_cast<std::int64_t>(token), 0,
                          "the batch of this token was released, or never was: ask while it is held");
    progress = &ledger_.at(slot).progress;
  }
  if (progress->epoch < 0) return error.fail(FEEDLANE_E_STATE, "no epoch has begun, there is nothing to go on from");
  if (progress->epoch != progress_.epoch)
    return error.refuse(FEEDLANE_E_STATE, "token", progress->epoch, progress_.epoch,
                        "the batch is of epoch %lld, and epoch %lld has begun since",
                        static_cast<long long>(progress->epoch), static_cast<long long>(progress_.epoch));
  SavedState s;
  s.iterable = config_.iterable;
  s.base_seed = config_.seed;
  s.batch_size = config_.batch_size;
  s.ranks = place_.stride;
  s.progress = *progress;
  if (config_.sampler != nullptr) {
    const bool makes_batches = config_.sampler->batch_rows() > 0;
    if (makes_batches) s.batch_size = 0;
    if (config_.sampler->seekable()) {
      const std::int64_t position = makes_batches ? progress->batches : progress->wanted;
      if (const Status saved = config_.sampler->save(position, s.sampler, error); saved != FEEDLANE_OK) return saved;
    } else if (progress->sampler_state != nullptr) {
      s.sampler = *progress->sampler_state;
    } else {
      return error.refuse(FEEDLANE_E_UNSUPPORTED, "config.sampler", 0, 1,
                          "a custom sampler without the callbacks save and load has no state");
    }
  }
  write_state(s, out);
  return FEEDLANE_OK;
}

// Before anything is made: a state that can't be gone on from is refused.
Status Loader::read_resume(Error& error) {
  if (config_.state.empty()) return FEEDLANE_OK;
  SavedState state;
  Status s = read_state(config_.state, state, error);
  if (s == FEEDLANE_OK) s = check_state(state, config_, error);
  if (s != FEEDLANE_OK) return s;
  if (config_.has_seed && config_.seed != state.base_seed)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.seed", static_cast<std::int64_t>(config_.seed),
                        static_cast<std::int64_t>(state.base_seed),
                        "the seed is %llu, the state has %llu: leave it out, the state's is taken",
                        static_cast<unsigned long long>(config_.seed),
                        static_cast<unsigned long long>(state.base_seed));
  config_.seed = state.base_seed;
  if (config_.sampler != nullptr) {
    s = config_.sampler->restart(state.progress.epoch, config_.seed, error);
    if (s == FEEDLANE_OK) s = config_.sampler->load(state.sampler, error);
    const std::int64_t ranks = config_.sampler->place().stride;
    if (s == FEEDLANE_OK && !state.progress.ahead.empty() && ranks != state.ranks)
      s = error.refuse(
          FEEDLANE_E_ARGUMENT, "config.sampler", ranks, state.ranks,
          "%lld ranks, the state has %lld: batches were yielded out of order, and only the same batches can be "
          "left out again",
          static_cast<long long>(ranks), static_cast<long long>(state.ranks));
    if (s == FEEDLANE_OK) s = config_.sampler->restart(state.progress.epoch, config_.seed, error);
  }
  if (s == FEEDLANE_OK) resume_ = std::move(state);
  return s;
}

// At the end of start_order: the epoch stands where the state says.
Status Loader::resume(Error& error) {
  progress_ = resume_->progress;
  next_batch_ = progress_.batches;
  next_position_ = progress_.positions;
  next_shard_ = progress_.next_shard;
  for (YieldedBatch& y : progress_.ahead) {
    y.wanted = std::max(y.rows, static_cast<std::uint32_t>(config_.batch_size));
    y.is_drawn = config_.sampler == nullptr || config_.sampler->seekable();
  }
  for (std::size_t i = 0; i < shards_.size(); i++) {
    const ShardProgress& saved = progress_.shards[i];
    shards_[i].exhausted = saved.ended;
    shards_[i].taken = saved.taken;
    shards_[i].state = saved.state;
  }
  exhausted_ = progress_.ended || (config_.iterable && std::all_of(shards_.begin(), shards_.end(),
                                                                   [](const Shard& s) { return s.exhausted; }));
  if (config_.sampler == nullptr) return FEEDLANE_OK;
  if (const Status s = config_.sampler->load(resume_->sampler, error); s != FEEDLANE_OK) return s;
  place_ = config_.sampler->place();
  // A batch size of its own, or ranks that share what is left: other batches than a whole epoch has.
  const std::int64_t length = config_.sampler->length();
  if (length >= 0 && config_.sampler->batch_rows() == 0) {
    const std::int64_t left = std::max<std::int64_t>(length - progress_.positions, 0);
    epoch_batches_ = progress_.batches + std::min(config_.batches_of(left), INT64_MAX - progress_.batches);
  } else {
    epoch_batches_ = length;
  }
  return save_sampler(progress_.sampler_state, error);
}

}  // namespace feedlane::loader
