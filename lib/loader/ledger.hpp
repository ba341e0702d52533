// SPDX-License-Identifier: Apache-2.0
// What the trainer knows of its tasks. Private to it: a worker's word counts only where it agrees with this.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "arena/slot.hpp"
#include "base/error.hpp"
#include "loader/progress.hpp"
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
    ended,      // its shard had no more samples
  };
  static constexpr std::uint32_t anyone = UINT32_MAX;

  State state = State::idle;
  std::uint64_t id = 0;
  std::int64_t batch = 0;
  std::int64_t first_position = 0;  // in the epoch's order as this loader has it
  std::uint32_t rows = 0;
  std::uint32_t attempt = 0;
  std::uint32_t kills = 0;   // workers that died with this batch in hand
  std::uint32_t home = 0;    // the only worker that may have it, or anyone; of a shard's: whose (inline: 0)
  std::uint32_t avoid = 0;   // the worker that it was taken back from, or anyone: the last choice
  std::uint32_t worker = 0;  // sent, abandoned, made
  std::uint32_t made_rows = 0;
  std::uint64_t taken = 0;  // iterable: samples that it took from its shard
  Error error;
  arena::Made made;    // and while the trainer holds the batch
  Blob sampler_state;  // after this batch, of a sampler that can't be asked later
  Blob shard_state;    // iterable: after this batch
  Progress progress;   // of the epoch, as of this batch; while the trainer holds it

  [[nodiscard]] bool is_out() const { return state == State::sent || state == State::abandoned; }
  [[nodiscard]] bool is_done() const { return state == State::made || state == State::failed || state == State::ended; }
};

class Ledger {
 public:
  void reset(std::uint32_t slots, bool out_of_order);

  [[nodiscard]] Record& at(std::uint32_t slot) { return records_[slot]; }
  [[nodiscard]] const Record& at(std::uint32_t slot) const { return records_[slot]; }
  [[nodiscard]] std::uint32_t slots() const { return static_cast<std::uint32_t>(records_.size()); }

  // A new batch of the epoch in this slot, the last in order: pending.
  Record& add(std::uint32_t slot, std::int64_t batch, std::int64_t first_position, std::uint32_t rows);
  // A new attempt: an id that was never used.
  std::uint64_t send(Record& record, std::uint32_t worker);
  // Its result is there: made, failed or ended.
  void finish(std::uint32_t slot, Record::State state);

  // The batch goes on in another slot, pending; this one stays busy until its worker answers or dies.
  void move(std::uint32_t slot, std::uint32_t other);

  // The record that a result speaks of, if the ledger agrees with every word of it; else nullptr.
  Record* match(const shm::ResultMessage& result, std::uint32_t worker);

  // The record of a task that this worker has, else nullptr.
  Record* find(std::uint64_t id, std::uint32_t worker);

  // Batches of the epoch not yet yielded.
  [[nodiscard]] std::uint32_t in_flight() const { return static_cast<std::uint32_t>(order_.size()); }
  // Whether there is one to yield: the oldest, or, out of order, the first that was finished.
  [[nodiscard]] bool any_done() const;
  [[nodiscard]] std::uint32_t front() const { return out_of_order_ ? done_.front() : order_.front(); }
  void pop_front();
  // All of them in order, oldest first.
  template <class F>
  void for_each_in_order(F&& f) {
    for (const std::uint32_t slot : order_) f(slot);
  }
  // The same of those that are pending, of which there are so many: mostly the newest.
  template <class F>
  void for_each_pending(std::uint32_t pending, F&& f) {
    auto from = order_.begin() + (order_.size() - pending);
    for (auto i = from; i != order_.end(); ++i)
      if (at(*i).state != Record::State::pending) {  // then they lie anywhere
        from = order_.begin();
        break;
      }
    for (; from != order_.end(); ++from)
      if (at(*from).state == Record::State::pending) f(*from);
  }
  // Those that are done, as they will be yielded, until one that isn't, or `f` says false.
  template <class F>
  void for_each_done(F&& f) {
    for (const std::uint32_t slot : out_of_order_ ? done_ : order_)
      if (!at(slot).is_done() || !f(slot)) return;
  }
  void forget_order();

  // Never used before within this loader.
  std::uint64_t take_id() { return next_id_++; }
  // Every task sent so far has a smaller id.
  [[nodiscard]] std::uint64_t next_id() const { return next_id_; }

 private:
  // Slots, oldest first. Never more than there are slots, so it grows no more after `reserve`.
  class Queue {
   public:
    void reserve(std::size_t slots) { circle_.resize(slots); }
    [[nodiscard]] std::size_t size() const { return count_; }
    [[nodiscard]] std::uint32_t front() const { return circle_[head_]; }
    void push(std::uint32_t slot) { at(count_++) = slot; }
    void pop();
    void remove(std::uint32_t slot);
    void replace(std::uint32_t slot, std::uint32_t other);
    void clear() { head_ = count_ = 0; }

    class Iterator {
     public:
      Iterator(const Queue& queue, std::size_t at) : queue_(&queue), at_(at) {}
      std::uint32_t operator*() const { return queue_->circle_[queue_->place(at_)]; }
      Iterator& operator++() {
        at_++;
        return *this;
      }
      Iterator operator+(std::size_t more) const { return {*queue_, at_ + more}; }
      bool operator!=(const Iterator& other) const { return at_ != other.at_; }

     private:
      const Queue* queue_;
      std::size_t at_;
    };
    [[nodiscard]] Iterator begin() const { return {*this, 0}; }
    [[nodiscard]] Iterator end() const { return {*this, count_}; }

   private:
    // Of the i-th, i at most size(). No division: this is done for every batch, over and over.
    [[nodiscard]] std::size_t place(std::size_t i) const {
      const std::size_t at = head_ + i;
      return at < circle_.size() ? at : at - circle_.size();
    }
    std::uint32_t& at(std::size_t i) { return circle_[place(i)]; }
    std::vector<std::uint32_t> circle_;
    std::size_t head_ = 0;
    std::size_t count_ = 0;
  };

  std::vector<Record> records_;
  bool out_of_order_ = false;
  Queue order_;  // as the sampler yielded them
  Queue done_;   // as they were finished; out of order only
  std::uint64_t next_id_ = 1;
};

}  // namespace feedlane::loader
