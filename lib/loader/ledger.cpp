// SPDX-License-Identifier: Apache-2.0
#include "loader/ledger.hpp"

namespace feedlane::loader {

void Ledger::reset(std::uint32_t slots) {
  records_.resize(slots);
  order_.resize(slots);
}

Record& Ledger::add(std::uint32_t slot, std::int64_t batch, std::int64_t first_position, std::uint32_t rows) {
  Record& r = records_[slot];
  r.state = Record::State::pending;
  r.batch = batch;
  r.first_position = first_position;
  r.rows = rows;
  r.attempt = 0;
  r.kills = 0;
  order_[(head_ + count_) % order_.size()] = slot;
  count_++;
  return r;
}

std::uint64_t Ledger::send(Record& record, std::uint32_t worker) {
  record.state = Record::State::sent;
  record.worker = worker;
  return record.id = take_id();
}

Record* Ledger::match(const shm::ResultMessage& result, std::uint32_t worker) {
  if (result.slot >= records_.size()) return nullptr;
  Record& r = records_[result.slot];
  const bool out = r.state == Record::State::sent || r.state == Record::State::abandoned;
  return out && r.id == result.id && r.attempt == result.attempt && r.worker == worker ? &r : nullptr;
}

void Ledger::pop_front() {
  head_ = static_cast<std::uint32_t>((head_ + 1) % order_.size());
  count_--;
}

}  // namespace feedlane::loader
