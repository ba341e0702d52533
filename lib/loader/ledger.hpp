// SPDX-License-Identifier: Apache-2.0
// What the trainer knows of its tasks. Private to it: a worker's word counts only where it agrees with this.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "shm/layout.hpp"

namespace feedlane::loader {

// One a slot, for a batch goes with its slot from the first sending to the yield.
struct Record {
  enum class State {
    idle,       // no task; the slot is free or its batch is in the trainer's hands
    pending,    // to be sent
    sent,       // with a worker
    abandoned,  // with a worker, but nobody wants it any more: the slot is busy until the worker answers or dies
    made,       // committed and checked, to be yielded
    failed,     // `error` is to be yielded
  };
  State state = State::idle;
  std::uint64_t id = 0;
  std::int64_t batch = 0;
  std::int64_t first_position = 0;
  std::uint32_t rows = 0;
  std::uint32_t attempt = 0;
  std::uint32_t kills = 0;   // workers that died with this batch in hand
  std::uint32_t worker = 0;  // sent, abandoned, made
  std::uint32_t made_rows = 0;
  Error error;
  std::vector<feedlane_tensor> tensors;  // made; and while the trainer holds the batch
};

class Ledger {
 public:
  void reset(std::uint32_t slots);

  [[nodiscard]] Record& at(std::uint32_t slot) { return records_[slot]; }
  [[nodiscard]] std::uint32_t slots() const { return static_cast<std::uint32_t>(records_.size()); }

  // A new batch of the epoch in this slot, the last in order: pending.
  Record& add(std::uint32_t slot, std::int64_t batch, std::int64_t first_position, std::uint32_t rows);
  // A new attempt: an id that was never used.
  std::uint64_t send(Record& record, std::uint32_t worker);

  // The record that a result speaks of, if the ledger agrees with every word of it; else nullptr.
  Record* match(const shm::ResultMessage& result, std::uint32_t worker);

  // Batches of the epoch not yet yielded.
  [[nodiscard]] std::uint32_t in_flight() const { return count_; }
  // The slot of the batch that is to be yielded next; only if in_flight() > 0.
  [[nodiscard]] std::uint32_t front() const { return order_[head_]; }
  void pop_front();
  // All of them in order, oldest first.
  template <class F>
  void for_each_in_order(F&& f) {
    for (std::uint32_t i = 0; i < count_; i++) f(order_[(head_ + i) % order_.size()]);
  }
  void forget_order() { head_ = count_ = 0; }

  // Never used before within this loader.
  std::uint64_t take_id() { return next_id_++; }
  // Every task sent so far has a smaller id.
  [[nodiscard]] std::uint64_t next_id() const { return next_id_; }

 private:
  std::vector<Record> records_;
  std::vector<std::uint32_t> order_;  // a circle of slots
  std::uint32_t head_ = 0;
  std::uint32_t count_ = 0;
  std::uint64_t next_id_ = 1;
};

}  // namespace feedlane::loader
