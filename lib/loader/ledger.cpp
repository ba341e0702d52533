// SPDX-License-Identifier: Apache-2.0
// The state transitions of the ledger's entries.
#include "loader/ledger.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace feedlane::loader {

using State = Entry::State;

void Ledger::reset(std::uint32_t slots, bool out_of_order) {
  entries_.resize(slots);
  slot_of_.resize(std::bit_ceil(std::size_t{2} * slots));
  for (std::uint32_t slot = 0; slot < slots; slot++) entries_[slot].slot = slot;
  out_of_order_ = out_of_order;
  order_.reserve(slots);
  done_.reserve(slots);
}

void Ledger::set_pending(Entry& entry) {
  entry.state = State::pending;
  pending_++;
}

// ---- from the sampler to a worker ----

const Entry& Ledger::add(std::uint32_t slot, Batch batch) {
  Entry& e = entries_[slot];
  e.batch = batch.number;
  e.first_position = batch.first_position;
  e.rows = batch.rows;
  e.home = batch.home;
  e.is_bound = batch.is_bound;
  e.attempt = 0;
  e.kills = 0;
  e.avoid = Entry::anyone;
  e.contents.taken = 0;
  e.contents.sampler_state = std::move(batch.sampler_state);
  e.contents.shard_state.reset();
  set_pending(e);
  order_.push(slot);
  return e;
}

std::uint64_t Ledger::send(std::uint32_t slot, std::uint32_t worker) {
  Entry& e = entries_[slot];
  e.state = State::sent;
  e.worker = worker;
  pending_--;
  e.id = next_id_++;
  slot_of_[e.id & (slot_of_.size() - 1)] = slot;
  return e.id;
}

void Ledger::requeue(std::uint32_t slot) { set_pending(entries_[slot]); }

void Ledger::requeue(std::uint32_t slot, std::uint32_t avoid) {
  entries_[slot].avoid = avoid;
  requeue(slot);
}

void Ledger::retry(std::uint32_t slot) {
  entries_[slot].attempt++;
  requeue(slot, Entry::anyone);
}

void Ledger::count_kill(std::uint32_t slot, pid_t pid, const char* how) {
  entries_[slot].kills++;
  (void)entries_[slot].contents.error.fail(FEEDLANE_E_PEER_DEAD, "process {} {}", pid, how);
}

void Ledger::move(std::uint32_t slot, std::uint32_t other) {
  Entry& from = entries_[slot];
  Entry& to = entries_[other];
  to.id = from.id;
  to.batch = from.batch;
  to.first_position = from.first_position;
  to.rows = from.rows;
  to.attempt = from.attempt + 1;
  to.kills = from.kills;
  to.home = from.is_bound ? from.home : Entry::anyone;
  to.is_bound = from.is_bound;
  to.avoid = from.worker;
  to.contents.error = from.contents.error;
  to.contents.taken = 0;
  to.contents.shard_state.reset();
  to.contents.sampler_state = std::move(from.contents.sampler_state);
  set_pending(to);
  from.state = State::abandoned;
  abandoned_++;
  order_.replace(slot, other);
}

// ---- results ----

const Entry* Ledger::find(std::uint64_t id, std::uint32_t worker) const {
  if (id >= next_id_) return nullptr;
  if (next_id_ - id > slot_of_.size()) return find_by_search(id, worker);
  const Entry& e = entries_[slot_of_[id & (slot_of_.size() - 1)]];
  return e.is_out() && e.id == id && e.worker == worker ? &e : nullptr;
}

// One that was sent long ago.
const Entry* Ledger::find_by_search(std::uint64_t id, std::uint32_t worker) const {
  for (const Entry& e : entries_)
    if (e.is_out() && e.id == id && e.worker == worker) return &e;
  return nullptr;
}

const Entry* Ledger::match(const shm::ResultMessage& result, std::uint32_t worker) const {
  if (result.slot >= entries_.size()) return nullptr;
  const Entry& e = entries_[result.slot];
  return e.is_out() && e.id == result.id && e.attempt == result.attempt && e.worker == worker ? &e : nullptr;
}

std::uint64_t Ledger::oldest_of(std::uint32_t worker) const {
  std::uint64_t oldest = UINT64_MAX;
  for (const Entry& e : entries_)
    if (e.is_out() && e.worker == worker) oldest = std::min(oldest, e.id);
  return oldest;
}

void Ledger::find_oldest(std::vector<std::uint64_t>& of_worker) const {
  std::fill(of_worker.begin(), of_worker.end(), UINT64_MAX);
  for (const Entry& e : entries_)
    if (e.is_out()) of_worker[e.worker] = std::min(of_worker[e.worker], e.id);
}

void Ledger::finish(std::uint32_t slot, State state) {
  Entry& e = entries_[slot];
  if (e.state == State::pending) pending_--;
  e.state = state;
  if (out_of_order_) done_.push(slot);
}

void Ledger::retire(std::uint32_t slot) {
  Entry& e = entries_[slot];
  if (e.state == State::abandoned) abandoned_--;
  e.state = State::idle;
}

// ---- in order ----

bool Ledger::any_done() const {
  if (out_of_order_) return done_.size() != 0;
  return order_.size() != 0 && entries_[order_.front()].is_done();
}

void Ledger::pop_front() {
  if (!out_of_order_) return order_.pop();
  order_.remove(done_.front());
  done_.pop();
}

}  // namespace feedlane::loader
