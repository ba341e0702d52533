// SPDX-License-Identifier: Apache-2.0
// The common part of MapOrder and ShardOrder.
#include "loader/order.hpp"

#include <algorithm>
#include <utility>

#include "loader/map_order.hpp"
#include "loader/shard_order.hpp"

namespace feedlane::loader {

std::unique_ptr<Order> make_order(Config& config, const shm::Segments& segments) {
  if (config.iterable) return std::make_unique<ShardOrder>(config, segments);
  return std::make_unique<MapOrder>(config, segments, std::move(config.sampler));
}

Status Order::start(std::int64_t epoch, Error& error) {
  if (const Status s = restart(epoch, error); s != FEEDLANE_OK) return s;
  epoch_ = epoch;
  next_batch_ = next_position_ = 0;
  is_exhausted_ = false;
  progress_ = {};
  progress_.epoch = epoch;
  batches_ = count_batches();
  if (const Status s = start_progress(error); s != FEEDLANE_OK) return s;
  if (!resume_ || resume_->progress.epoch != epoch) return FEEDLANE_OK;
  progress_ = resume_->progress;
  next_batch_ = progress_.batches;
  next_position_ = progress_.positions;
  is_exhausted_ = progress_.ended;
  const Status s = go_on(error);
  batches_ = std::min(batches_, config_.max_batches);
  is_exhausted_ = is_exhausted_ || is_cut();
  return s;
}

Status Order::save(const checkpoint::Progress& progress, checkpoint::SavedState& out, Error& error) const {
  out.base_seed = config_.seed;
  out.batch_size = config_.batch_size;
  out.progress = progress;
  return save_sampler(progress, out, error);
}

const Entry& Order::add_drawn(Ledger& ledger) {
  if (config_.round_robin && config_.workers != 0 && !drawn_.is_bound)
    drawn_.home = static_cast<std::uint32_t>(next_batch_ % config_.workers);
  const Entry& entry = ledger.add(drawn_.slot, {next_batch_, next_position_, drawn_.rows, drawn_.home, drawn_.is_bound,
                                                std::move(drawn_.sampler_state)});
  is_exhausted_ = drawn_.is_last;
  next_batch_++;
  next_position_ += drawn_.rows;
  drawn_ = {};
  return entry;
}

std::optional<std::uint32_t> Order::drop_drawn() {
  const bool had_slot = drawn_.has_slot;
  const std::uint32_t slot = drawn_.slot;
  drawn_ = {};
  return had_slot ? std::optional(slot) : std::nullopt;
}

void Order::reserve(const Entry&, Contents& contents) {
  std::vector<checkpoint::YieldedBatch>& ahead = progress_.ahead;
  if (ahead.size() == ahead.capacity()) ahead.reserve(2 * ahead.size() + 4);
  contents.progress.ahead.reserve(ahead.size() + 1);  // for the copy that the batch keeps
  contents.progress.shards.reserve(progress_.shards.size());
}

}  // namespace feedlane::loader
