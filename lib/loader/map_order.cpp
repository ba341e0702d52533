// SPDX-License-Identifier: Apache-2.0
// Makes batches of the indices that a sampler yields.
#include "loader/map_order.hpp"

#include <algorithm>
#include <utility>

#include "loader/resume.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::loader {

// ---- an epoch ----

Status MapOrder::check_state(const checkpoint::SavedState& state, Error& error) const {
  const std::int64_t batch_size = makes_batches() ? 0 : config_.batch_size;
  if (!state.progress.ahead.empty() && batch_size != state.batch_size)
    return refuse_difference("config.batch_size", batch_size, state.batch_size,
                             "it must not change, because the epoch yielded batches out of order", error);
  if ((batch_size == 0) != (state.batch_size == 0))
    return refuse_difference("config.batch_size", batch_size, state.batch_size,
                             "a batch sampler can resume only from the state of a batch sampler, and vice versa",
                             error);
  return FEEDLANE_OK;
}

Status MapOrder::try_resume(const checkpoint::SavedState& state, Error& error) {
  Status s = sampler_->restart(state.progress.epoch, config_.seed, error);
  if (s == FEEDLANE_OK) s = sampler_->load(state.sampler, error);
  const std::int64_t ranks = sampler_->place().stride;
  if (s == FEEDLANE_OK && !state.progress.ahead.empty() && ranks != state.ranks)
    s = error.refuse(FEEDLANE_E_ARGUMENT, "config.sampler", ranks, state.ranks,
                     "the sampler has {} ranks, but the state was saved with {}: they must not change, because the "
                     "epoch yielded batches out of order",
                     ranks, state.ranks);
  return s == FEEDLANE_OK ? sampler_->restart(state.progress.epoch, config_.seed, error) : s;
}

std::int64_t MapOrder::count_batches() const {
  const std::int64_t length = sampler_->length();
  return std::min(length < 0 || makes_batches() ? length : config_.batches_of(length), config_.max_batches);
}

Status MapOrder::restart(std::int64_t epoch, Error& error) {
  const Status s = sampler_->restart(epoch, config_.seed, error);
  if (s == FEEDLANE_OK) place_ = sampler_->place();
  return s;
}

Status MapOrder::start_progress(Error& error) { return save_place(progress_.sampler_state, error); }

Status MapOrder::go_on(Error& error) {
  for (checkpoint::YieldedBatch& y : progress_.ahead) {
    y.wanted = std::max(y.rows, static_cast<std::uint32_t>(config_.batch_size));
    y.is_drawn = sampler_->seekable();
  }
  if (const Status s = sampler_->load(resume_->sampler, error); s != FEEDLANE_OK) return s;
  place_ = sampler_->place();
  // After a resume the batch size may differ, and ranks may share the rest of the epoch. So the number of batches is
  // not that of a whole epoch.
  const std::int64_t length = sampler_->length();
  if (length >= 0 && !makes_batches()) {
    const std::int64_t left = std::max<std::int64_t>(length - progress_.positions, 0);
    batches_ = progress_.batches + std::min(config_.batches_of(left), INT64_MAX - progress_.batches);
  } else {
    batches_ = length;
  }
  return save_place(progress_.sampler_state, error);
}

Status MapOrder::save_sampler(const checkpoint::Progress& progress, checkpoint::SavedState& out, Error& error) const {
  out.ranks = place_.stride;
  if (makes_batches()) out.batch_size = 0;
  if (sampler_->seekable())
    return sampler_->save(makes_batches() ? progress.batches : progress.wanted, out.sampler, error);
  if (progress.sampler_state == nullptr)
    return error.refuse(FEEDLANE_E_UNSUPPORTED, "config.sampler", 0, 1,
                        "the state cannot be saved: the custom sampler has no callbacks `save` and `load`");
  out.sampler = *progress.sampler_state;
  return FEEDLANE_OK;
}

// A sampler that cannot be saved is refused only when a state is requested.
Status MapOrder::save_place(checkpoint::Blob& out, Error& error) const {
  out.reset();
  if (sampler_->seekable()) return FEEDLANE_OK;
  auto state = std::make_shared<std::vector<std::byte>>();
  const Status s = sampler_->save(-1, *state, error);
  if (s == FEEDLANE_E_UNSUPPORTED) return FEEDLANE_OK;
  if (s == FEEDLANE_OK) out = std::move(state);
  return s;
}

// ---- drawing ----

// Pulls the next batch's indices and writes them into the slot's list, which workers can only read. 0 rows: there are
// no more batches. If the slot's last batch was taken back, its worker may still be reading the list: see
// Worker::ahead.
Status MapOrder::pull(Error& error) {
  const auto cap = static_cast<std::uint64_t>(config_.batch_size);
  std::uint64_t got = 0;
  indices_.resize(cap);
  const Status s = sampler_->next(indices_.data(), cap, got, error);
  if (s < 0 || s == FEEDLANE_AGAIN) return s;
  if (s != FEEDLANE_END && got == 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "sampler", 0, 1, "the sampler yielded no indices for batch {}",
                        next_batch_);
  const bool is_complete = makes_batches() || got == cap;
  const bool is_batch = s != FEEDLANE_END && (is_complete || !config_.drop_last);
  is_exhausted_ = !is_batch;
  drawn_.rows = is_batch ? static_cast<std::uint32_t>(got) : 0;
  shm::write_list(segments_.index_list(drawn_.slot), indices_.data(), drawn_.rows);
  drawn_.is_last = !is_complete || next_batch_ + 1 == batches_ || next_batch_ + 1 >= config_.max_batches;
  return FEEDLANE_OK;
}

Status MapOrder::draw(Error& error) {
  while (!is_exhausted_) {
    if (drawn_.rows == 0)
      if (const Status s = pull(error); s != FEEDLANE_OK || drawn_.rows == 0) return s;
    if (const Status s = save_place(drawn_.sampler_state, error); s != FEEDLANE_OK) return s;
    if (!progress_.has(next_batch_)) break;
    // Before the resume, this batch was yielded out of order. The sampler's position after it is known only now.
    progress_.set_sampler_state(next_batch_, std::move(drawn_.sampler_state));
    next_batch_++;
    next_position_ += drawn_.rows;
    is_exhausted_ = drawn_.is_last;
    drawn_.rows = 0;
  }
  return FEEDLANE_OK;
}

shm::TaskMessage MapOrder::message_for(const Entry& entry, std::uint64_t id) {
  shm::TaskMessage m{};
  m.id = id;
  m.epoch = epoch_;
  m.batch = entry.batch;
  // Modulo 2^64: `first` may be far below zero, see Distributed::place.
  m.first_position = static_cast<std::int64_t>(static_cast<std::uint64_t>(place_.first) +
                                               static_cast<std::uint64_t>(entry.first_position) *
                                                   static_cast<std::uint64_t>(place_.stride));
  m.slot = entry.slot;
  m.attempt = entry.attempt;
  m.rows = entry.rows;
  m.stride = static_cast<std::uint32_t>(place_.stride);
  return m;
}

// ---- results ----

// A batch has at most one row per sample. It has none only if all of its samples were left out.
Status MapOrder::check_rows(const Entry& entry, std::uint32_t rows, const tensors::Made& made, Error& error) const {
  const std::uint64_t skipped = made.skipped();
  if (rows + skipped <= entry.rows && (rows != 0 || skipped != 0)) return FEEDLANE_OK;
  return error.refuse(
      FEEDLANE_E_CORRUPT, "result.rows", rows, entry.rows - std::min<std::uint64_t>(entry.rows, skipped),
      "the worker made {} rows and skipped {} samples, but its task has {} samples", rows, skipped, entry.rows);
}

std::int64_t MapOrder::sample_at(const Entry& entry, std::int64_t position) const {
  return position >= 0 && position < entry.rows ? segments_.index_list(entry.slot)[position] : -1;
}

std::int64_t MapOrder::yielded_sample(const Entry& entry, std::uint32_t position) const {
  return segments_.index_list(entry.slot)[position];
}

// ---- batches in the trainer's hands ----

void MapOrder::reserve(const Entry& entry, Contents& contents) {
  Order::reserve(entry, contents);
  left_out_.reserve(entry.contents.made.skipped());
}

// Changes the list of indices, which the worker no longer needs, into the list of rows, followed by the samples that
// were left out.
void MapOrder::list_samples(const Entry& entry, feedlane_batch& out) {
  std::int64_t* list = segments_.index_list(entry.slot);
  out.indices = list;
  const std::vector<shm::SampleRecord>& records = entry.contents.made.records;
  if (records.empty()) return;
  indices_.resize(entry.rows);
  left_out_.clear();
  auto next = records.begin();
  std::uint32_t kept = 0;
  for (std::uint32_t position = 0; position < entry.rows; position++) {
    const bool has_record = next != records.end() && next->position == position && next->whole == 0;
    const auto outcome = has_record ? static_cast<shm::SampleOutcome>(next->outcome) : shm::SampleOutcome::retried;
    if (outcome == shm::SampleOutcome::skipped) left_out_.push_back(list[position]);
    else indices_[kept++] = outcome == shm::SampleOutcome::substituted ? next->substitute : list[position];
    if (next != records.end() && next->position == position) ++next;
  }
  std::copy(left_out_.begin(), left_out_.end(), indices_.data() + kept);
  shm::write_list(list, indices_.data(), entry.rows);
  out.skipped = list + kept;
}

void MapOrder::advance(const Entry& entry, Contents& contents, monitor::EventQueue&) {
  if (entry.state == Entry::State::made) progress_.skipped += contents.made.skipped();
  progress_.yield(
      {entry.batch, entry.rows, static_cast<std::uint32_t>(config_.batch_size), std::move(contents.sampler_state)});
}

}  // namespace feedlane::loader
