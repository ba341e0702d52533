// SPDX-License-Identifier: Apache-2.0
// Sampler -> ledger -> task rings.
#include <algorithm>
#include <cstring>
#include <tuple>

#include "loader/loader.hpp"

namespace feedlane::loader {

using State = Record::State;

bool Loader::can_pull() const {
  return begun_ && !exhausted_ && failure_.code == FEEDLANE_OK && sampler_error_.code == FEEDLANE_OK &&
         ledger_.in_flight() < config_.window() && (drawn_.has_slot || has_slot_to_spare());
}

// One that is fenced keeps a slot that the window counts on. The last free one is then for what another may get stuck
// with: if batches that are made had all of them, the oldest might wait for one of theirs for ever.
bool Loader::has_slot_to_spare() const {
  return fenced_ == 0 || ledger_.in_flight() == 0 ? slots_.any_free() : slots_.free() > 1;
}

// The next batch's indices into the slot's list, which workers can only read. 0 rows: the sampler has no more batches.
Status Loader::pull(Error& error) {
  const bool makes_batches = config_.sampler->batch_rows() > 0;
  const auto cap = static_cast<std::uint64_t>(config_.batch_size);
  std::uint64_t got = 0;
  const Status s = config_.sampler->next(segments_.index_list(drawn_.slot), cap, got, error);
  if (s < 0) return s;
  if (s != FEEDLANE_END && got == 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "sampler", 0, 1, "the sampler yielded an empty batch %lld",
                        static_cast<long long>(next_batch_));
  const bool complete = makes_batches || got == cap;
  const bool is_batch = s != FEEDLANE_END && (complete || !config_.drop_last);
  exhausted_ = !is_batch;
  drawn_.rows = is_batch ? static_cast<std::uint32_t>(got) : 0;
  drawn_.is_last = !complete || next_batch_ + 1 == epoch_batches_;
  return FEEDLANE_OK;
}

// All that has to be known of the next batch. When the sampler fails in between, the next try goes on from there.
Status Loader::draw(Error& error) {
  while (!exhausted_) {
    if (drawn_.rows == 0)
      if (const Status s = pull(error); s != FEEDLANE_OK || drawn_.rows == 0) return s;
    if (const Status s = save_sampler(drawn_.sampler_state, error); s != FEEDLANE_OK) return s;
    if (!progress_.has(next_batch_)) break;
    // Out of order and resumed: it was yielded before. Where the sampler stands behind it is only known now.
    progress_.set_sampler_state(next_batch_, std::move(drawn_.sampler_state));
    next_batch_++;
    next_position_ += drawn_.rows;
    exhausted_ = drawn_.is_last;
    drawn_.rows = 0;
  }
  return FEEDLANE_OK;
}

void Loader::drop_drawn() {
  if (drawn_.has_slot) slots_.put_back(drawn_.slot);
  drawn_ = {};
}

// Of a sampler that can't be asked later, where it stands now. One that can't be saved at all is only refused when a
// state is wanted.
Status Loader::save_sampler(Blob& out, Error& error) {
  out.reset();
  if (config_.sampler->seekable()) return FEEDLANE_OK;
  auto state = std::make_shared<std::vector<std::byte>>();
  const Status s = config_.sampler->save(-1, *state, error);
  if (s == FEEDLANE_E_UNSUPPORTED) return FEEDLANE_OK;
  if (s == FEEDLANE_OK) out = std::move(state);
  return s;
}

// Shards that haven't ended, by turns: by what was yielded, so that the order doesn't depend on timing.
bool Loader::next_shard(std::uint32_t& shard) {
  const auto count = static_cast<std::uint32_t>(shards_.size());
  for (std::uint32_t i = 0; i < count; i++) {
    shard = (next_shard_ + i) % count;
    if (progress_.shards[shard].ended) continue;
    next_shard_ = shard + 1;
    return true;
  }
  return false;
}

// What was drawn becomes a batch of the ledger.
Record& Loader::add_task() {
  Record& r = ledger_.add(drawn_.slot, next_batch_, next_position_, drawn_.rows);
  if (config_.round_robin && config_.workers != 0) r.home = static_cast<std::uint32_t>(next_batch_ % config_.workers);
  r.sampler_state = std::move(drawn_.sampler_state);
  exhausted_ = drawn_.is_last;
  next_batch_++;
  next_position_ += drawn_.rows;
  pending_++;
  drawn_ = {};
  return r;
}

Status Loader::dispatch(Error& error) {
  Status s = FEEDLANE_OK;
  if (any_stranded_) rescue_stranded();  // before a new batch takes the slot
  restore_free_slots();
  while (s == FEEDLANE_OK && can_pull()) {
    if (!drawn_.has_slot && !slots_.take(drawn_.slot)) break;
    drawn_.has_slot = true;
    std::uint32_t shard = 0;
    if (!config_.iterable) s = draw(error);
    else if (next_shard(shard)) drawn_.rows = static_cast<std::uint32_t>(config_.batch_size);
    else exhausted_ = true;
    if (exhausted_) drop_drawn();
    if (s != FEEDLANE_OK || exhausted_) break;
    Record& r = add_task();
    if (config_.iterable) r.home = shard;
  }
  assign_pending();
  if (take_back_queued()) assign_pending();
  return s;
}

// What the sampler fails with is told by `next`, when nothing is left to yield; until then nothing is asked of it.
void Loader::feed() {
  Error error;
  if (dispatch(error) != FEEDLANE_OK) sampler_error_ = std::move(error);
}

namespace {

// How many tasks it may not have begun: of one that is ready all but the first, which it has in hand or is about to begin.
// One that hasn't attached or is opening its data set may take long.
std::uint32_t waiting_tasks(const worker::Peer& p) {
  if (!p.is_live() || p.unfinished == 0) return 0;
  return p.state() == worker::State::ready ? p.unfinished - 1 : p.unfinished;
}

}  // namespace

// A worker has nothing to do while tasks wait behind one that another is busy with, or for one that is still starting:
// those are taken back. Where batches have their workers, they wait.
bool Loader::take_back_queued() {
  if (config_.round_robin || pending_ != 0 || peers_.size() < 2) return false;
  const auto is_idle = [](const worker::Peer& p) {
    return p.has_attached() && p.is_live() && p.unfinished == 0 && p.revoked() == 0 &&
           p.state() == worker::State::ready;
  };
  if (std::none_of(peers_.begin(), peers_.end(), is_idle)) return false;
  const auto has_less = [](const worker::Peer& a, const worker::Peer& b) {
    return waiting_tasks(a) < waiting_tasks(b);
  };
  const auto most = std::max_element(peers_.begin(), peers_.end(), has_less) - peers_.begin();
  if (take_back_from(static_cast<std::uint32_t>(most))) return true;
  if (abandoned_ == 0) return false;  // else all of those may be ones that nobody wants any more
  for (std::uint32_t w = 0; w < peers_.size(); w++)
    if (w != most && take_back_from(w)) return true;
  return false;
}

// The tasks that it hasn't begun; false: there are none. Of one that is fenced, those that nobody wants any more too.
bool Loader::take_back_from(std::uint32_t w) {
  worker::Peer& victim = peers_[w];
  if (!victim.is_fenced && waiting_tasks(victim) == 0) return false;
  const std::uint64_t begun = victim.begun_through();
  std::uint64_t oldest = UINT64_MAX;
  queued_.clear();
  for (std::uint32_t slot = 0; slot < ledger_.slots(); slot++) {
    const Record& r = ledger_.at(slot);
    if (!r.is_out() || r.worker != w) continue;
    oldest = std::min(oldest, r.id);
    if ((r.state == State::sent || victim.is_fenced) && r.id > begun) queued_.emplace_back(r.id, slot);
  }
  std::sort(queued_.begin(), queued_.end());
  // One that has none in hand is about to begin one, and nobody would tell us when.
  const bool is_at_work = victim.state() == worker::State::ready && !victim.is_fenced;
  if (is_at_work && !queued_.empty() && oldest == queued_.front().first) queued_.erase(queued_.begin());
  if (queued_.empty()) return false;
  queued_ids_.clear();
  for (const auto& [id, slot] : queued_) queued_ids_.push_back(id);
  const std::size_t kept = victim.revoke(queued_ids_, oldest);
  for (std::size_t i = kept; i < queued_.size(); i++) {
    Record& r = ledger_.at(queued_[i].second);
    if (r.state == State::abandoned) {
      abandoned_--;
      r.state = State::idle;
      slots_.put_back(queued_[i].second);
      continue;
    }
    r.state = State::pending;
    r.avoid = w;
    pending_++;
  }
  return kept < queued_.size();
}

// External workers get nothing before they attach: they may never come.
bool Loader::can_take(const worker::Peer& p) const {
  return p.is_live() && (p.has_attached() || p.is_spawned()) && p.unfinished < config_.prefetch_factor &&
         p.has_room() && !p.is_fenced;
}

// The worker with the fewest unfinished tasks that has room, by turns among equals. One that is still starting gets some
// only while none is ready: it may take long, and would keep what others could do soon.
worker::Peer* Loader::choose_worker(const Record& record) {
  // The batches of one that is lost go to others, but for those of its shard.
  if (record.home != Record::anyone && (config_.iterable || !peers_[record.home].is_lost()))
    return can_take(peers_[record.home]) ? &peers_[record.home] : nullptr;
  worker::Peer* best = nullptr;
  const auto is_ready = [](const worker::Peer& p) {
    return p.state() == worker::State::ready && p.is_live() && !p.is_fenced;
  };
  bool any_ready = false;
  const auto rank = [&](const worker::Peer& p) {
    const bool had_it = static_cast<std::size_t>(&p - peers_.data()) == record.avoid;
    const int readiness = p.state() == worker::State::ready ? 0 : p.has_attached() ? 1 : 2;
    return std::tuple(readiness, had_it ? 1 : 0, p.unfinished + p.revoked());
  };
  for (std::size_t i = 1; i <= peers_.size(); i++) {
    worker::Peer& p = peers_[(last_chosen_ + i) % peers_.size()];
    any_ready = any_ready || is_ready(p);
    if (can_take(p) && (best == nullptr || rank(p) < rank(*best))) best = &p;
  }
  if (best != nullptr && any_ready && !is_ready(*best)) return nullptr;
  if (best != nullptr) last_chosen_ = static_cast<std::size_t>(best - peers_.data());
  return best;
}

shm::TaskMessage Loader::message_for(Record& record, std::uint64_t id, std::uint32_t slot) {
  shm::TaskMessage m{};
  m.id = id;
  m.epoch = epoch_;
  m.batch = record.batch;
  // Modulo 2^64: `first` may be far below zero, see Distributed::place.
  m.first_position = static_cast<std::int64_t>(static_cast<std::uint64_t>(place_.first) +
                                               static_cast<std::uint64_t>(record.first_position) *
                                                   static_cast<std::uint64_t>(place_.stride));
  m.slot = slot;
  m.attempt = record.attempt;
  m.rows = record.rows;
  m.stride = static_cast<std::uint32_t>(place_.stride);
  if (!config_.iterable) return m;
  Shard& shard = shards_[record.home];
  m.first_position = 0;
  if (!std::exchange(shard.fresh, false)) return m;
  m.flags = shm::task_first;
  m.first_position = static_cast<std::int64_t>(shard.taken);
  if (shard.state == nullptr) return m;
  m.state_bytes = static_cast<std::uint32_t>(shard.state->size());
  if (m.state_bytes != 0) std::memcpy(segments_.index_list(slot), shard.state->data(), m.state_bytes);
  return m;
}

// A task of a shard that has nothing left, or can't be opened again.
bool Loader::settle_without_worker(std::uint32_t slot) {
  if (!config_.iterable) return false;
  Record& r = ledger_.at(slot);
  Shard& shard = shards_[r.home];
  if (!shard.exhausted) return false;
  pending_--;
  r.made.records.clear();
  if (shard.loss.code != FEEDLANE_OK) {
    r.error = std::exchange(shard.loss, {});
    ledger_.finish(slot, State::failed);
  } else {
    ledger_.finish(slot, State::ended);
  }
  return true;
}

void Loader::assign_pending() {
  if (pending_ == 0) return;
  slot_error_.code = FEEDLANE_OK;
  ledger_.for_each_pending(pending_, [&](std::uint32_t slot) {
    Record& r = ledger_.at(slot);
    if (settle_without_worker(slot)) return;
    worker::Peer* peer = choose_worker(r);
    if (peer == nullptr) return;
    const auto w = static_cast<std::uint32_t>(peer - peers_.data());
    if (slot_memory_.restore(slot, slot_error_) != FEEDLANE_OK) return;  // it stays pending; `next` tells
    const std::uint64_t id = ledger_.send(r, w);
    pending_--;
    peer->send(message_for(r, id, slot));
    if (config_.has_task_timeout() && peer->unfinished == 1) {
      peer->progress_ns = os::now_ns();
      peer->excused = 0;
    }
    to_ring_[w] = true;
  });
  // One fence and at most one wake-up for all that a worker got.
  for (std::uint32_t w = 0; w < peers_.size(); w++) {
    if (to_ring_[w]) peers_[w].ring_doorbell();
    to_ring_[w] = false;
  }
}

// Nobody wants the epoch's batches any more. Those with a worker keep their slots busy until it answers or dies.
void Loader::abandon_epoch() {
  // Relaxed: workers look at it only to save work.
  if (!peers_.empty()) segments_.trainer_block()->abandon_before.store(ledger_.next_id(), std::memory_order_relaxed);
  ledger_.for_each_in_order([&](std::uint32_t slot) {
    Record& r = ledger_.at(slot);
    if (r.state == State::sent && config_.workers != 0) {
      r.state = State::abandoned;
      abandoned_++;
    } else {
      if (staging_ != nullptr) staging_->drop(slot);
      r.state = State::idle;
      slots_.put_back(slot);
    }
  });
  ledger_.forget_order();
  drop_drawn();
  sampler_error_ = {};
  pending_ = 0;
  any_stranded_ = false;
}

}  // namespace feedlane::loader
