// SPDX-License-Identifier: Apache-2.0
// Makes batches of the workers' shards, round-robin.
#include "loader/shard_order.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "dataset/task.hpp"
#include "loader/resume.hpp"

namespace feedlane::loader {

// ---- an epoch ----

Status ShardOrder::check_state(const checkpoint::SavedState& state, Error& error) const {
  const std::vector<checkpoint::ShardProgress>& shards = state.progress.shards;
  if (state.batch_size == 0)
    return refuse_difference("config.batch_size", config_.batch_size, state.batch_size,
                             "an iterable data set cannot resume from the state of a batch sampler", error);
  if (state.ranks != config_.world)
    return refuse_difference("config.world", config_.world, state.ranks, "each rank must resume its own shards", error);
  if (state.rank != config_.rank)
    return refuse_difference("config.rank", config_.rank, state.rank, "each rank must resume its own shards", error);
  if (shards.size() != config_.shards())
    return refuse_difference("config.workers", config_.workers, shards.size(), "each worker must resume its own shard",
                             error);
  for (const checkpoint::ShardProgress& shard : shards)
    if (shard.taken != 0 && !shard.ended && shard.state == nullptr && !config_.deterministic)
      return error.refuse(FEEDLANE_E_ARGUMENT, "config.deterministic", 0, 1,
                          "cannot resume a shard after {} samples: it has no saved state, and skipping the samples "
                          "needs config.deterministic",
                          shard.taken);
  return FEEDLANE_OK;
}

std::int64_t ShardOrder::count_batches() const {
  if (config_.iterable_length == 0) return -1;
  return std::min(config_.batches_of(config_.iterable_length), config_.max_batches);
}

Status ShardOrder::start_progress(Error&) {
  next_shard_ = 0;
  shards_.assign(config_.shards(), {});
  progress_.shards.assign(shards_.size(), {});
  return FEEDLANE_OK;
}

Status ShardOrder::go_on(Error&) {
  next_shard_ = progress_.next_shard;
  for (std::size_t i = 0; i < shards_.size(); i++) {
    const checkpoint::ShardProgress& saved = progress_.shards[i];
    shards_[i].is_exhausted = saved.ended;
    shards_[i].taken = saved.taken;
    shards_[i].state = saved.state;
  }
  is_exhausted_ =
      progress_.ended || std::all_of(shards_.begin(), shards_.end(), [](const Shard& s) { return s.is_exhausted; });
  return FEEDLANE_OK;
}

// ---- drawing ----

Status ShardOrder::draw(Error&) {
  const auto count = static_cast<std::uint32_t>(shards_.size());
  for (std::uint32_t i = 0; i < count; i++) {
    const std::uint32_t shard = (next_shard_ + i) % count;
    if (progress_.shards[shard].ended) continue;
    next_shard_ = shard + 1;
    drawn_.rows = static_cast<std::uint32_t>(config_.batch_size);
    drawn_.home = shard;
    drawn_.is_bound = true;
    return FEEDLANE_OK;
  }
  is_exhausted_ = true;
  return FEEDLANE_OK;
}

shm::TaskMessage ShardOrder::message_for(const Entry& entry, std::uint64_t id) {
  shm::TaskMessage m{};
  m.id = id;
  m.epoch = epoch_;
  m.batch = entry.batch;
  m.slot = entry.slot;
  m.attempt = entry.attempt;
  m.rows = entry.rows;
  m.stride = 1;
  Shard& shard = shards_[entry.home];
  if (!std::exchange(shard.is_fresh, false)) return m;
  m.flags = shm::task_first;
  m.first_position = static_cast<std::int64_t>(shard.taken);
  if (shard.state == nullptr) return m;
  m.state_bytes = static_cast<std::uint32_t>(shard.state->size());
  if (m.state_bytes != 0) std::memcpy(segments_.index_list(entry.slot), shard.state->data(), m.state_bytes);
  return m;
}

bool ShardOrder::settle(const Entry& entry, Ledger& ledger) {
  Shard& shard = shards_[entry.home];
  if (!shard.is_exhausted) return false;
  Contents& contents = ledger.contents(entry.slot);
  contents.made.records.clear();
  if (shard.loss.code != FEEDLANE_OK) {
    contents.error = std::exchange(shard.loss, {});
    ledger.fail(entry.slot);
  } else {
    ledger.finish(entry.slot, Entry::State::ended);
  }
  return true;
}

// ---- results ----

std::uint64_t ShardOrder::sample_limit(std::uint32_t rows) const { return dataset::Task::record_limit(rows, true); }

Status ShardOrder::check_rows(const Entry& entry, std::uint32_t rows, const tensors::Made& made, Error& error) const {
  if (rows != 0 || !made.records.empty()) return FEEDLANE_OK;
  const std::uint64_t skipped = made.skipped();
  return error.refuse(
      FEEDLANE_E_CORRUPT, "result.rows", rows, entry.rows - std::min<std::uint64_t>(entry.rows, skipped),
      "the worker made {} rows and skipped {} samples, but its task has {} samples", rows, skipped, entry.rows);
}

// A worker's results arrive in the order of its tasks, so the last one determines the position in its shard.
void ShardOrder::on_result(const Entry& entry, std::uint64_t taken, const tensors::Made* made, Contents& contents) {
  Shard& shard = shards_[entry.home];
  checkpoint::Blob state;  // before anything counts: memory may be too short
  if (made != nullptr && made->has_state)
    state = std::make_shared<const std::vector<std::byte>>(made->state.begin(), made->state.end());
  contents.taken = taken;
  shard.taken += taken;
  // After a failed batch, the saved state is older than the samples taken, so it is useless for a resume.
  if (made == nullptr && taken != 0 && shard.state != nullptr) {
    shard.state.reset();
    shard.lost_state = true;
  }
  if (state != nullptr) {
    shard.state = std::move(state);
    shard.lost_state = false;
  }
  contents.shard_state = shard.state;
}

std::int64_t ShardOrder::sample_at(const Entry& entry, std::int64_t position) const {
  return position < 0 ? -1 : static_cast<std::int64_t>(shards_[entry.home].taken) + position;
}

// ---- batches in the trainer's hands ----

std::int64_t ShardOrder::yielded_sample(const Entry& entry, std::uint32_t position) const {
  return static_cast<std::int64_t>(progress_.shards[entry.home].taken) + position;
}

void ShardOrder::advance(const Entry& entry, Contents& contents, monitor::EventQueue& events) {
  const bool was_made = entry.state == Entry::State::made;
  const bool has_ended = entry.state == Entry::State::ended;
  if (was_made) progress_.skipped += contents.made.skipped();
  checkpoint::ShardProgress& shard = progress_.shards[entry.home];
  shard.taken += contents.taken;
  if (contents.taken != 0) shard.state = contents.shard_state;  // a task that took nothing left the shard where it was
  progress_.next_shard = (entry.home + 1) % static_cast<std::uint32_t>(progress_.shards.size());
  const bool is_silent = has_ended || (was_made && contents.made_rows == 0);
  if (!is_silent) progress_.batches++;
  is_exhausted_ = is_exhausted_ || is_cut();
  if (was_made) {
    const std::int64_t before = progress_.positions;
    progress_.positions += contents.made_rows;
    warn_of_length(before, events);
  }
  if (!has_ended) return;
  shard.ended = true;
  is_exhausted_ = std::all_of(progress_.shards.begin(), progress_.shards.end(), [](const auto& s) { return s.ended; });
}

void ShardOrder::warn_of_length(std::int64_t before, monitor::EventQueue& events) const {
  const std::int64_t expected = config_.iterable_length;
  if (expected == 0 || before > expected || progress_.positions <= expected) return;
  Error warning;
  (void)warning.refuse(FEEDLANE_E_LIMIT, "config.iterable_length", progress_.positions, expected,
                       "the data set has yielded more samples than config.iterable_length, {}", expected);
  events.push(FEEDLANE_EVENT_WARNING, warning);
}

// ---- workers that end or hang ----

std::uint64_t ShardOrder::delivered_by(std::uint32_t worker) const {
  return worker < shards_.size() ? shards_[worker].taken : 0;
}

// The next worker opens the shard again and resumes after the last committed sample, either from the saved state or by
// passing over as many samples. A data set that supports neither would yield other samples, so the rest of its shard is
// lost.
void ShardOrder::on_gone(std::uint32_t worker, const char* how, pid_t pid) {
  if (worker >= shards_.size()) return;
  Shard& shard = shards_[worker];
  shard.is_fresh = true;
  if (shard.is_exhausted || shard.taken == 0 || shard.state != nullptr || config_.deterministic) return;
  shard.is_exhausted = true;
  (void)shard.loss.refuse(FEEDLANE_E_PEER_DEAD, "config.deterministic", 0, 1,
                          "worker {}: process {} {} after {} samples of its shard; the rest is lost, because {}",
                          worker, pid, how, shard.taken,
                          shard.lost_state
                              ? "its data set is not deterministic, and its last batch failed without saving a state"
                              : "its data set is not deterministic and saves no state");
  shard.loss.worker = static_cast<std::int32_t>(worker);
}

// No other worker can continue the shard of a stuck worker. An error takes the place of its next batch.
void ShardOrder::on_stuck(std::uint32_t worker, const char* what) {
  if (worker >= shards_.size() || shards_[worker].is_exhausted) return;
  Shard& shard = shards_[worker];
  shard.is_exhausted = true;
  (void)shard.loss.refuse(FEEDLANE_E_HUNG, "config.task_timeout_ns", config_.task_timeout_ns, config_.task_timeout_ns,
                          "worker {}, {}: the rest of its shard is lost for this epoch", worker, what);
  shard.loss.worker = static_cast<std::int32_t>(worker);
  shard.loss.epoch = epoch_;
}

const char* ShardOrder::on_quarantined(std::uint32_t worker) {
  shards_[worker].is_exhausted = true;  // every further task would start at the same sample
  return "; the rest of their shard is skipped";
}

}  // namespace feedlane::loader
