// SPDX-License-Identifier: Apache-2.0
#include "loader/ledger.hpp"

namespace feedlane::loader {

void Ledger::Queue::pop() {
  head_ = place(1);
  count_--;
}

void Ledger::Queue::remove(std::uint32_t slot) {
  std::size_t i = 0;
  while (i < count_ && at(i) != slot) i++;
  if (i == count_) return;
  for (; i > 0; i--) at(i) = at(i - 1);  // those before it move up
  pop();
}

void Ledger::Queue::replace(std::uint32_t slot, std::uint32_t other) {
  for (std::size_t i = 0; i < count_; i++)
    if (at(i) == slot) at(i) = other;
}

void Ledger::move(std::uint32_t slot, std::uint32_t other) {
  Record& from = records_[slot];
  Record& to = records_[other];
  to.id = from.id;
  to.batch = from.batch;
  to.first_position = from.first_position;
  to.rows = from.rows;
  to.attempt = from.attempt + 1;
  to.kills = from.kills;
  to.error = from.error;
  to.home = from.home;
  to.avoid = from.worker;
  to.taken = 0;
  to.shard_state.reset();
  to.sampler_state = std::move(from.sampler_state);
  to.state = Record::State::pending;
  from.state = Record::State::abandoned;
  order_.replace(slot, other);
}

void Ledger::reset(std::uint32_t slots, bool out_of_order) {
  records_.resize(slots);
  out_of_order_ = out_of_order;
  order_.reserve(slots);
  done_.reserve(slots);
}

Record& Ledger::add(std::uint32_t slot, std::int64_t batch, std::int64_t first_position, std::uint32_t rows) {
  Record& r = records_[slot];
  r.state = Record::State::pending;
  r.batch = batch;
  r.first_position = first_position;
  r.rows = rows;
  r.attempt = 0;
  r.kills = 0;
  r.home = r.avoid = Record::anyone;
  r.taken = 0;
  r.sampler_state.reset();
  r.shard_state.reset();
  order_.push(slot);
  return r;
}

std::uint64_t Ledger::send(Record& record, std::uint32_t worker) {
  record.state = Record::State::sent;
  record.worker = worker;
  return record.id = take_id();
}

void Ledger::finish(std::uint32_t slot, Record::State state) {
  records_[slot].state = state;
  if (out_of_order_) done_.push(slot);
}

Record* Ledger::match(const shm::ResultMessage& result, std::uint32_t worker) {
  if (result.slot >= records_.size()) return nullptr;
  Record& r = records_[result.slot];
  return r.is_out() && r.id == result.id && r.attempt == result.attempt && r.worker == worker ? &r : nullptr;
}

Record* Ledger::find(std::uint64_t id, std::uint32_t worker) {
  for (Record& r : records_)
    if (r.is_out() && r.id == id && r.worker == worker) return &r;
  return nullptr;
}

bool Ledger::any_done() const {
  if (out_of_order_) return done_.size() != 0;
  return order_.size() != 0 && records_[order_.front()].is_done();
}

void Ledger::pop_front() {
  if (!out_of_order_) return order_.pop();
  order_.remove(done_.front());
  done_.pop();
}

void Ledger::forget_order() {
  order_.clear();
  done_.clear();
}

}  // namespace feedlane::loader
