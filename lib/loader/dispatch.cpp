// SPDX-License-Identifier: Apache-2.0
// Sampler -> ledger -> task rings, and result lanes -> ledger.
#include <tuple>

#include "arena/slot.hpp"
#include "loader/loader.hpp"
#include "shm/words.hpp"

namespace feedlane::loader {

using State = Record::State;

bool Loader::can_pull() const {
  return begun_ && !exhausted_ && failure_.code == FEEDLANE_OK && ledger_.in_flight() < config_.window() &&
         slots_.any_free();
}

// The next batch's indices into the slot's list, which workers can only read. 0 rows: the sampler has no more batches.
Status Loader::pull(std::uint32_t slot, std::uint32_t& rows, Error& error) {
  std::uint64_t got = 0;
  const Status s =
      config_.sampler->next(segments_.index_list(slot), static_cast<std::uint64_t>(config_.batch_size), got, error);
  if (s < 0) return s;
  const bool complete = got == static_cast<std::uint64_t>(config_.batch_size);
  rows = s == FEEDLANE_END || (!complete && config_.drop_last) ? 0 : static_cast<std::uint32_t>(got);
  exhausted_ = !complete || next_batch_ + 1 == length_;
  return FEEDLANE_OK;
}

Status Loader::dispatch(Error& error) {
  while (can_pull()) {
    std::uint32_t slot = 0;
    if (!slots_.take(slot)) break;
    std::uint32_t rows = 0;
    const Status s = pull(slot, rows, error);
    if (s != FEEDLANE_OK || rows == 0) {
      slots_.put_back(slot);
      if (s != FEEDLANE_OK) return s;
      break;
    }
    ledger_.add(slot, next_batch_, next_position_, rows);
    pending_++;
    next_batch_++;
    next_position_ += rows;
  }
  assign_pending();
  return FEEDLANE_OK;
}

// The worker with the fewest unfinished tasks that has room, by turns among equals. Attached ones first: a replacement
// that is still starting doesn't get what another could do now. External ones get nothing before they attach: they may
// never come.
worker::Peer* Loader::choose_worker() {
  worker::Peer* best = nullptr;
  const auto rank = [](const worker::Peer& p) { return std::tuple(p.has_attached() ? 0 : 1, p.unfinished); };
  for (std::size_t i = 1; i <= peers_.size(); i++) {
    worker::Peer& p = peers_[(last_chosen_ + i) % peers_.size()];
    const bool eligible = p.is_live() && (p.has_attached() || p.is_spawned());
    if (!eligible || p.unfinished >= config_.prefetch_factor) continue;
    if (best == nullptr || rank(p) < rank(*best)) best = &p;
  }
  if (best != nullptr) last_chosen_ = static_cast<std::size_t>(best - peers_.data());
  return best;
}

void Loader::assign_pending() {
  if (pending_ == 0) return;
  ledger_.for_each_in_order([&](std::uint32_t slot) {
    Record& r = ledger_.at(slot);
    if (r.state != State::pending) return;
    worker::Peer* peer = choose_worker();
    if (peer == nullptr) return;
    const auto w = static_cast<std::uint32_t>(peer - peers_.data());
    const std::uint64_t id = ledger_.send(r, w);
    pending_--;
    peer->send({id, epoch_, r.batch, r.first_position, slot, r.attempt, r.rows, 0});
    to_ring_[w] = true;
  });
  // One fence and at most one wake-up for all that a worker got.
  for (std::uint32_t w = 0; w < peers_.size(); w++) {
    if (to_ring_[w]) peers_[w].ring_doorbell();
    to_ring_[w] = false;
  }
}

void Loader::sweep() {
  for (ring::Lanes::Message m = lanes_.peek(); m.data != nullptr; m = lanes_.peek()) {
    const auto result = shm::read_once<shm::ResultMessage>(m.data);
    take_result(m.lane, result);  // if memory is short for it, it is still there
    lanes_.release(m.lane);
  }
}

void Loader::drain_lane(std::uint32_t worker) {
  for (ring::Lanes::Message m = lanes_.peek_lane(worker); m.data != nullptr; m = lanes_.peek_lane(worker)) {
    const auto result = shm::read_once<shm::ResultMessage>(m.data);
    take_result(worker, result);
    lanes_.release(worker);
  }
}

void Loader::take_result(std::uint32_t worker, const shm::ResultMessage& result) {
  worker::Peer& peer = peers_[worker];
  Record* record = ledger_.match(result, worker);
  Status s = FEEDLANE_E_CORRUPT;
  if (record != nullptr) {
    if (record->state == State::abandoned) {
      Counters::add(counters_.late_results);
      peer.unfinished--;
      abandoned_--;
      record->state = State::idle;
      slots_.put_back(result.slot);
      return;
    }
    s = read_result(*record, result.slot, result, unheard_);
  }
  if (s != FEEDLANE_OK) {
    // Its words don't hold together: the task stays its own until it is observed dead, then goes to another.
    Counters::add(counters_.invalid_results);
    if (record == nullptr)
      (void)unheard_.refuse(FEEDLANE_E_CORRUPT, "result.slot", result.slot, ledger_.slots(),
                            "worker %u sent a result for slot %u that it has no task for", worker, result.slot);
    unheard_.worker = static_cast<std::int32_t>(worker);
    events_.push(FEEDLANE_EVENT_INVALID, unheard_);
    if (record != nullptr) {
      peer.refused_task = record->id;
      record->error = unheard_;
    }
    if (!peer.is_ending()) peer.cut_off(poller_);
    return;
  }
  peer.unfinished--;
}

// Checks what the worker says of its slot and enters it into the ledger. E_CORRUPT.
Status Loader::read_result(Record& record, std::uint32_t slot_number, const shm::ResultMessage& result, Error& error) {
  const arena::Slot where = slot(slot_number);
  if (result.status == FEEDLANE_OK) {
    if (result.rows == 0 || result.rows > record.rows)
      return error.refuse(FEEDLANE_E_CORRUPT, "result.rows", result.rows, record.rows, "%u rows of %u", result.rows,
                          record.rows);
    const Status s = arena::read_batch(where, record.id, config_.fields, result.rows, record.tensors, error);
    if (s != FEEDLANE_OK) return s;
    record.made_rows = result.rows;
    record.state = State::made;
    return FEEDLANE_OK;
  }
  if (result.status != FEEDLANE_E_SAMPLE)
    return error.refuse(FEEDLANE_E_CORRUPT, "result.status", result.status, FEEDLANE_E_SAMPLE, "status %d",
                        result.status);
  Error why;
  std::int64_t position = -1;
  if (const Status s = arena::read_failure(where, record.id, record.rows, position, why, error); s != FEEDLANE_OK)
    return s;
  why.code = FEEDLANE_E_SAMPLE;
  why.worker = static_cast<std::int32_t>(record.worker);
  why.sample = position < 0 ? -1 : segments_.index_list(slot_number)[position];
  record.error = std::move(why);
  record.state = State::failed;
  return FEEDLANE_OK;
}

// Nobody wants the epoch's batches any more. Those with a worker keep their slots busy until it answers or dies.
void Loader::abandon_epoch() {
  // Relaxed: workers look at it only to save work.
  if (!peers_.empty()) segments_.trainer_block()->abandon_before.store(ledger_.next_id(), std::memory_order_relaxed);
  ledger_.for_each_in_order([&](std::uint32_t slot) {
    Record& r = ledger_.at(slot);
    if (r.state == State::sent) {
      r.state = State::abandoned;
      abandoned_++;
    } else {
      r.state = State::idle;
      slots_.put_back(slot);
    }
  });
  ledger_.forget_order();
  pending_ = 0;
}

}  // namespace feedlane::loader
