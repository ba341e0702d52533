// SPDX-License-Identifier: Apache-2.0
// Yields batches in order.
#include "loader/delivery.hpp"

#include <algorithm>
#include <utility>

#include "shm/asan.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::loader {

using State = Entry::State;

Status Delivery::use(pinned::Pool& pool, Error& error) {
  pool.clean_up();
  memory_.slot_memory.use(pool);
  if (config_.staged == 0) return memory_.slot_memory.register_slots(error);
  if (config_.fields.slot_bytes() > pool.buffer_bytes())
    return error.refuse(FEEDLANE_E_LIMIT, "config.pinned", pool.buffer_bytes(), config_.fields.slot_bytes(),
                        "a batch takes {} bytes, but the pool's buffers have only {}", config_.fields.slot_bytes(),
                        pool.buffer_bytes());
  staging_ = std::make_unique<Staging>();
  return staging_->open(pool, config_.staged, error);
}

// ---- the front ----

bool Delivery::is_ready() {
  settle_front();
  if (staging_ == nullptr || !ledger_.any_done()) return ledger_.any_done();
  stage_ahead();
  const std::uint32_t front = ledger_.front();
  return ledger_.at(front).state != State::made || staging_->is_ready(front);
}

// Finishes tasks that have no batch to yield: the shard had no more samples, or all samples of the batch were left out.
void Delivery::settle_front() {
  while (ledger_.any_done()) {
    const Entry& entry = ledger_.at(ledger_.front());
    if (entry.state == State::made) check_skip_budget(entry);
    const bool is_empty = entry.state == State::made && entry.contents.made_rows == 0;
    if (entry.state != State::ended && !is_empty) return;
    order_->reserve(entry, ledger_.contents(entry.slot));
    ledger_.pop_front();
    if (is_empty) tell_records(entry);
    finish(entry);
    memory_.slots.put_back(entry.slot);
  }
}

// Batches are checked in the order in which they are yielded, so that the batch that exceeds the budget does not depend
// on timing.
void Delivery::check_skip_budget(const Entry& entry) {
  Contents& contents = ledger_.contents(entry.slot);
  std::vector<shm::SampleRecord>& records = contents.made.records;
  const std::uint64_t skipped = order_->progress().skipped + contents.made.skipped();
  if (contents.made.skipped() == 0 || skipped <= static_cast<std::uint64_t>(config_.skip_budget)) return;
  const auto is_skipped = [](const shm::SampleRecord& r) {
    return r.outcome == static_cast<std::int32_t>(shm::SampleOutcome::skipped);
  };
  const auto record = std::find_if(records.begin(), records.end(), is_skipped);
  (void)contents.error.refuse(FEEDLANE_E_SAMPLE, "config.skip_budget", skipped, config_.skip_budget,
                              "{}; {} skipped samples in this epoch exceed config.skip_budget, which is {}",
                              first(sizeof record->text, record->text), skipped, config_.skip_budget);
  contents.error.worker = config_.maker_of(entry.worker);
  contents.error.sample = order_->yielded_sample(entry, record->position);
  ledger_.reject(entry.slot);
  std::erase_if(records, is_skipped);
}

// Advances the epoch by this batch and retires its entry.
void Delivery::finish(const Entry& entry) {
  const std::int64_t before = order_->progress().batches;
  order_->advance(entry, ledger_.contents(entry.slot), events_);
  // A shard's task may end without a batch.
  if (!order_->has_shards() || order_->progress().batches != before) shm::add(memory_.counters().epoch_done);
  ledger_.retire(entry.slot);
}

// ---- yielding ----

Status Delivery::yield(feedlane_batch& out, Error& error) {
  const Entry& entry = ledger_.at(ledger_.front());
  Contents& contents = ledger_.contents(entry.slot);
  order_->reserve(entry, contents);  // all the memory that it takes: what follows cannot fail half-way
  if (entry.state == State::made)    // a dead worker may have changed the pages of a living one's slot
    if (const Status s = memory_.slot_memory.register_again(entry.slot, error); s != FEEDLANE_OK) return s;
  ledger_.pop_front();
  tell_records(entry);
  if (entry.state == State::made) {
    const Status s = hand_out(entry, out);
    finish(entry);
    contents.progress = order_->progress();
    return s;
  }
  error = std::move(contents.error);
  error.epoch = order_->epoch();
  error.batch = order_->number_of(entry);
  error.attempt = static_cast<std::int32_t>(entry.attempt);
  prefetch_.on_yield(stamps_.on_yield(entry.slot, {error.batch, error.code, 0, 0}));
  if (staging_ != nullptr) staging_->drop(entry.slot);
  memory_.slots.put_back(entry.slot);
  finish(entry);
  return error.code;
}

Status Delivery::hand_out(const Entry& entry, feedlane_batch& out) {
  const tensors::Made& made = entry.contents.made;
  shm::LoaderCounters& counters = memory_.counters();
  out = {};
  out.size = sizeof out;
  out.token = memory_.slots.hand_out(entry.slot);
  if (staging_ != nullptr) staging_->hand_out(entry.slot, out.token);
  out.epoch = order_->epoch();
  out.batch = order_->number_of(entry);
  out.worker = config_.maker_of(entry.worker);
  out.attempt = static_cast<std::int32_t>(entry.attempt);
  out.tensors = made.tensors.data();
  out.tensor_count = made.tensors.size();
  out.count = entry.contents.made_rows;
  out.skipped_count = made.skipped();
  if (!made.metadata.empty()) {
    out.metadata = made.metadata.data();
    out.metadata_bytes = made.metadata.size();
  }
  order_->list_samples(entry, out);
  shm::add(counters.batches);
  shm::add(counters.samples, entry.contents.made_rows);
  std::uint64_t bytes = 0;
  for (const feedlane_tensor& t : made.tensors) bytes += t.bytes;
  if (staging_ == nullptr) unpoison_tensors(entry);  // else they were unpoisoned when they were copied
  if (!made.metadata.empty()) {
    const std::byte* payload = memory_.segments.payload(entry.slot);
    shm::unpoison(payload, static_cast<std::uint64_t>(made.metadata.data() - payload), made.metadata.size());
  }
  shm::add(counters.bytes, bytes);
  prefetch_.on_yield(stamps_.on_yield(entry.slot, {out.batch, FEEDLANE_OK, entry.contents.made_rows, bytes}));
  stamps_.list(entry.slot, out);
  return FEEDLANE_OK;
}

void Delivery::unpoison_tensors(const Entry& entry) const {
  const std::byte* payload = memory_.segments.payload(entry.slot);
  for (const feedlane_tensor& t : entry.contents.made.tensors)
    shm::unpoison(payload, static_cast<std::uint64_t>(static_cast<std::byte*>(t.data) - payload), t.bytes);
}

void Delivery::tell_records(const Entry& entry) {
  shm::LoaderCounters& counters = memory_.counters();
  for (const shm::SampleRecord& r : entry.contents.made.records) {
    const auto outcome = static_cast<shm::SampleOutcome>(r.outcome);
    const bool is_substituted = outcome == shm::SampleOutcome::substituted;
    const bool is_skipped = outcome == shm::SampleOutcome::skipped;
    if (r.retries != 0) shm::add(counters.retried);
    if (is_substituted) shm::add(counters.substituted);
    if (is_skipped) shm::add(counters.skipped);
    Error e;
    (void)e.fail(r.code, "{}", first(sizeof r.text, r.text));
    e.epoch = order_->epoch();
    e.batch = order_->number_of(entry);
    e.worker = config_.maker_of(entry.worker);
    e.attempt = static_cast<std::int32_t>(entry.attempt);
    if (r.whole == 0) e.sample = order_->yielded_sample(entry, r.position);
    e.found = r.retries;
    e.needed = is_substituted ? r.substitute : 0;
    events_.push(is_skipped       ? FEEDLANE_EVENT_SAMPLE_SKIPPED
                 : is_substituted ? FEEDLANE_EVENT_SAMPLE_SUBSTITUTED
                                  : FEEDLANE_EVENT_SAMPLE_RETRIED,
                 e);
  }
}

// ---- staging ----

// Copies begin in the order in which batches are yielded. So later batches never take the buffer that the next batch
// needs.
void Delivery::stage_ahead() {
  ledger_.for_each_done([&](const Entry& entry) {
    if (entry.state != State::made || entry.contents.made_rows == 0 || staging_->is_begun(entry.slot)) return true;
    bool has_buffer = false;
    unpoison_tensors(entry);
    Contents& contents = ledger_.contents(entry.slot);
    Error error;
    if (staging_->begin(entry.slot, contents.made, memory_.slots, config_.workers == 0, has_buffer, error) ==
        FEEDLANE_OK)
      return has_buffer;
    contents.error = std::move(error);
    contents.error.worker = config_.maker_of(entry.worker);
    ledger_.reject(entry.slot);
    return true;
  });
}

bool Delivery::has_staging_work() const {
  if (staging_ == nullptr || !ledger_.any_done()) return false;
  const std::uint32_t front = ledger_.front();
  return staging_->is_ready(front) || (!staging_->is_begun(front) && !staging_->all_held(memory_.slots));
}

bool Delivery::is_out_of_buffers() const {
  return staging_ != nullptr && ledger_.any_done() && !memory_.any_release_pending() &&
         staging_->all_held(memory_.slots);
}

Status Delivery::obstacle(Error& error) {
  if (staging_ == nullptr) return FEEDLANE_OK;
  const os::Deadline deadline = std::exchange(copier_deadline_, os::Deadline::never());
  if (!ledger_.any_done()) return FEEDLANE_OK;
  if (is_out_of_buffers()) {
    const std::uint32_t held = memory_.slots.held();
    return error.refuse(FEEDLANE_SLOTS_HELD, "config.staged", held, config_.staged,
                        "the trainer holds every staging buffer ({}): release a batch", held);
  }
  if (config_.workers == 0 || staging_->has_copier()) return FEEDLANE_OK;
  copier_deadline_ = deadline.is_never() ? os::Deadline::after(config_.start_timeout_ns) : deadline;
  if (copier_deadline_.remaining_ns() != 0) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_PEER_DEAD, "config.staged", 0, 1,
                      "no thread fills the staging buffers: call feedlane_loader_run_stager in a separate thread");
}

}  // namespace feedlane::loader
