// SPDX-License-Identifier: Apache-2.0
// Registered memory: the arena as it is, or buffers of a pool that batches are copied to.
#include "loader/loader.hpp"
#include "os/event.hpp"

namespace feedlane::loader {

Status Loader::set_up_device(pinned::Pool* pool, Error& error) {
  pool->clean_up();
  slot_memory_.use(*pool);
  if (config_.staged == 0) return slot_memory_.register_slots(error);
  if (config_.fields.slot_bytes() > pool->buffer_bytes())
    return error.refuse(FEEDLANE_E_LIMIT, "config.pinned", static_cast<std::int64_t>(pool->buffer_bytes()),
                        static_cast<std::int64_t>(config_.fields.slot_bytes()),
                        "a batch takes %llu bytes, a buffer of the pool has %llu",
                        static_cast<unsigned long long>(config_.fields.slot_bytes()),
                        static_cast<unsigned long long>(pool->buffer_bytes()));
  staging_ = std::make_unique<Staging>();
  return staging_->open(*pool, config_.staged, error);
}

// Not only when they are sent again: until then they may hold memory that the next worker lacks. Those in use follow when
// they are free, or with their next task, which tells what fails here.
void Loader::restore_free_slots() {
  if (!slot_memory_.any_in_doubt()) return;
  for (std::uint32_t slot = 0; slot < slots_.size(); slot++)
    if (slot_memory_.wants_restoring(slot) && slots_.is_free(slot)) (void)slot_memory_.restore(slot, unheard_);
}

// A trainer asleep in next: it may have been short of slots for new tasks, or of a batch that was being copied.
void Loader::wake() {
  if (!peers_.empty()) (void)ring::Doorbell(&segments_.trainer_block()->sleeping, wake_event_.get()).ring();
}

// ---- releases by streams ----

bool Loader::any_release_pending() const {
  // Acquire: pairs with the release in end_release, whose slot is free then.
  return pending_releases_.load(std::memory_order_acquire) != 0;
}

Status Loader::begin_use(std::uint64_t token, Error& error) {
  const Status s = slots_.begin_use(token);
  if (s == FEEDLANE_OK) return s;
  return error.fail(s, s == FEEDLANE_E_STALE ? "the batch was released, or there never was such a token"
                                             : "as many streams as can be counted use the batch");
}

arena::SlotTable::Left Loader::end_release(std::uint64_t token, const Error& stream) {
  if (stream.code != FEEDLANE_OK) events_.push(FEEDLANE_EVENT_DEVICE_FAILED, stream);
  const arena::SlotTable::Left left = slots_.end_use(token);
  pending_releases_.fetch_sub(1, std::memory_order_release);
  // Whether it was the last reference or not: next may want to say that the trainer holds everything.
  if (peers_.empty()) os::signal_event(wake_event_.get());  // inline: nobody sets a flag
  else wake();
  return left;
}

// ---- staging ----

// Copies begin in the order in which batches are yielded, so that the one to be yielded next never lacks a buffer for those
// behind it.
void Loader::stage_ahead() {
  ledger_.for_each_done([&](std::uint32_t slot) {
    Record& r = ledger_.at(slot);
    if (r.state != Record::State::made || r.made_rows == 0 || staging_->is_begun(slot)) return true;
    bool has_buffer = false;
    permit_tensors(r, slot);
    if (staging_->begin(slot, r.made, slots_, config_.workers == 0, has_buffer, unheard_) != FEEDLANE_OK) {
      r.error = unheard_;
      r.error.worker = maker_of(r);
      r.state = Record::State::failed;
      return true;
    }
    return has_buffer;
  });
}

// For a trainer about to sleep: whether the batch to be yielded next is in its buffer, or could be on its way there.
bool Loader::staging_gets_on() const {
  if (staging_ == nullptr || !ledger_.any_done()) return false;
  const std::uint32_t front = ledger_.front();
  return staging_->is_ready(front) || (!staging_->is_begun(front) && !staging_->all_held(slots_));
}

// As is_out_of_slots, of the buffers that batches are copied to.
bool Loader::is_out_of_buffers() const {
  return staging_ != nullptr && ledger_.any_done() && !any_release_pending() && staging_->all_held(slots_);
}

// What keeps a batch that is made from being copied.
Status Loader::staging_obstacle(Error& error) {
  const os::Deadline deadline = std::exchange(copier_deadline_, os::Deadline::never());
  if (!ledger_.any_done()) return FEEDLANE_OK;
  if (is_out_of_buffers())
    return error.refuse(FEEDLANE_SLOTS_HELD, "config.staged", held(), config_.staged,
                        "the trainer holds %u batches, all buffers there are", held());
  if (config_.workers == 0 || staging_->has_copier()) return FEEDLANE_OK;
  copier_deadline_ = deadline.is_never() ? os::Deadline::after(config_.start_timeout_ns) : deadline;
  if (copier_deadline_.remaining_ns() != 0) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_PEER_DEAD, "config.staged", 0, 1,
                      "no thread copies: feedlane_loader_run_stager, from a thread of its own");
}

Status Loader::run_stager(Error& error) {
  if (staging_ == nullptr) return error.refuse(FEEDLANE_E_STATE, "config.staged", 0, 1, "the loader isn't staged");
  if (config_.workers == 0)
    return error.refuse(FEEDLANE_E_STATE, "config.workers", 0, 1, "without workers next copies by itself");
  return staging_->run([this] { wake(); }, error);
}

void Loader::close_staging() {
  if (staging_ != nullptr) staging_->close();
}

}  // namespace feedlane::loader
