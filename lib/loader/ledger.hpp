// SPDX-License-Identifier: Apache-2.0
// The trainer's record of its tasks: one entry per slot, the order in which batches are yielded, and the number of
// entries in each state. Private to the trainer: a worker's message counts only if it agrees with the ledger.
//
// A batch keeps its slot from the first time it is sent until it is yielded. Only the ledger changes an entry's state:
//
//   idle -> pending -> sent -> made | failed | ended -> idle
//             ^          |
//             +----------+  declined, taken back, or its worker died
//   sent -> abandoned -> idle: the epoch was given up, or the batch continues in another slot
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/progress.hpp"
#include "loader/slot_queue.hpp"
#include "shm/layout.hpp"
#include "tensors/slot.hpp"

namespace feedlane::loader {

// A task's subject and outcome, in addition to its state.
struct Contents {
  std::uint32_t made_rows = 0;
  std::uint64_t taken = 0;         // shards only: samples that the task took from its shard
  Error error;                     // failed: returned by `next`; before: how the last worker that had the batch ended
  tensors::Made made;              // made, and while the trainer holds the batch
  checkpoint::Blob sampler_state;  // after this batch, of a sampler that cannot report it later
  checkpoint::Blob shard_state;    // shards only: after this batch
  checkpoint::Progress progress;   // the epoch's, as of this batch; while the trainer holds it
};

struct Entry {
  enum class State {
    idle,       // no task; the slot is free, or its batch is held by the trainer
    pending,    // to be sent
    sent,       // with a worker
    abandoned,  // with a worker but no longer needed: the slot is busy until the worker answers or dies
    made,       // committed and checked, to be yielded
    failed,     // its error is to be yielded
    ended,      // its shard had no more samples
  };
  static constexpr std::uint32_t anyone = UINT32_MAX;

  State state = State::idle;
  std::uint32_t slot = 0;
  std::uint64_t id = 0;  // of the newest attempt
  std::int64_t batch = 0;
  std::int64_t first_position = 0;  // in this loader's order of the epoch
  std::uint32_t rows = 0;
  std::uint32_t attempt = 0;
  std::uint32_t kills = 0;       // workers that died while making this batch
  std::uint32_t home = anyone;   // the worker that should have it
  bool is_bound = false;         // to its home: no other worker may get it
  std::uint32_t avoid = anyone;  // the worker that lost the task: the last choice for it
  std::uint32_t worker = 0;      // sent, abandoned, made
  Contents contents;

  [[nodiscard]] bool is_out() const { return state == State::sent || state == State::abandoned; }
  [[nodiscard]] bool is_done() const { return state == State::made || state == State::failed || state == State::ended; }
};

class Ledger {
 public:
  void reset(std::uint32_t slots, bool out_of_order);

  [[nodiscard]] const Entry& at(std::uint32_t slot) const { return entries_[slot]; }
  [[nodiscard]] Contents& contents(std::uint32_t slot) { return entries_[slot].contents; }
  [[nodiscard]] std::uint32_t slots() const { return static_cast<std::uint32_t>(entries_.size()); }
  [[nodiscard]] std::uint32_t pending() const { return pending_; }
  [[nodiscard]] std::uint32_t abandoned() const { return abandoned_; }
  // Batches of the epoch that have not been yielded yet.
  [[nodiscard]] std::uint32_t in_flight() const { return static_cast<std::uint32_t>(order_.size()); }

  // ---- from the sampler to a worker ----

  struct Batch {
    std::int64_t number = 0;
    std::int64_t first_position = 0;
    std::uint32_t rows = 0;
    std::uint32_t home = Entry::anyone;
    bool is_bound = false;
    checkpoint::Blob sampler_state;
  };
  // Adds a new batch of the epoch in an idle slot, last in order and pending.
  const Entry& add(std::uint32_t slot, Batch batch);
  // Starts a new attempt: pending -> sent. Returns its id, which has never been used.
  std::uint64_t send(std::uint32_t slot, std::uint32_t worker);
  // The worker will not begin the task: sent -> pending. `avoid`: the worker that is the last choice for it.
  void requeue(std::uint32_t slot);
  void requeue(std::uint32_t slot, std::uint32_t avoid);
  // Its worker died: sent -> pending, the next attempt.
  void retry(std::uint32_t slot);
  // A worker ended while making this batch. Until a result arrives, contents().error says how.
  void count_kill(std::uint32_t slot, pid_t pid, const char* how);
  // The batch continues in another slot, pending; the old slot's entry is abandoned.
  void move(std::uint32_t slot, std::uint32_t other);

  // ---- results ----

  // The entry of this worker's task with this id; nullptr if the worker has no such task.
  [[nodiscard]] const Entry* find(std::uint64_t id, std::uint32_t worker) const;
  // The entry of a result if every word of the result agrees with the ledger; else nullptr.
  [[nodiscard]] const Entry* match(const shm::ResultMessage& result, std::uint32_t worker) const;
  // The oldest task that the worker has not answered; UINT64_MAX: none. find_oldest: for each worker.
  [[nodiscard]] std::uint64_t oldest_of(std::uint32_t worker) const;
  void find_oldest(std::vector<std::uint64_t>& of_worker) const;
  // The task is done: made, failed or ended. fail: with contents().error.
  void finish(std::uint32_t slot, Entry::State state);
  void fail(std::uint32_t slot) { finish(slot, Entry::State::failed); }
  // A finished batch must not be yielded: made -> failed, in its place in the order.
  void reject(std::uint32_t slot) { entries_[slot].state = Entry::State::failed; }
  // Ends the entry: the slot is free, or its batch is held by the trainer.
  void retire(std::uint32_t slot);
  // Gives up all batches of the epoch. With workers, sent batches are abandoned. `drop(slot)` is called for all others.
  template <class F>
  void abandon_all(bool has_workers, F&& drop);

  // ---- in the order in which batches are yielded ----

  // Whether the next batch can be yielded: the oldest, or, out of order, the first that was finished.
  [[nodiscard]] bool any_done() const;
  [[nodiscard]] std::uint32_t front() const { return out_of_order_ ? done_.front() : order_.front(); }
  void pop_front();
  // All batches, oldest first.
  template <class F>
  void for_each_in_order(F&& f) const {
    for (const std::uint32_t slot : order_) f(entries_[slot]);
  }
  // All pending batches, oldest first. They are mostly the newest batches.
  template <class F>
  void for_each_pending(F&& f) const;
  // Done batches in the order of yielding. Stops at a batch that is not done, or when `f` returns false.
  template <class F>
  void for_each_done(F&& f) const {
    for (const std::uint32_t slot : out_of_order_ ? done_ : order_)
      if (!entries_[slot].is_done() || !f(entries_[slot])) return;
  }

  // Every task sent so far has a smaller id.
  [[nodiscard]] std::uint64_t next_id() const { return next_id_; }

 private:
  void set_pending(Entry& entry);
  [[nodiscard]] const Entry* find_by_search(std::uint64_t id, std::uint32_t worker) const;

  std::vector<Entry> entries_;
  bool out_of_order_ = false;
  SlotQueue order_;  // in the order of drawing
  SlotQueue done_;   // in the order of finishing; out of order only
  std::uint32_t pending_ = 0;
  std::uint32_t abandoned_ = 0;
  std::uint64_t next_id_ = 1;
  std::vector<std::uint32_t> slot_of_;  // of the newest tasks, by id modulo its size, a power of two
};

template <class F>
void Ledger::for_each_pending(F&& f) const {
  auto from = order_.begin() + (order_.size() - pending_);
  for (auto i = from; i != order_.end(); ++i)
    if (entries_[*i].state != Entry::State::pending) {  // pending batches may be anywhere
      from = order_.begin();
      break;
    }
  for (; from != order_.end(); ++from)
    if (entries_[*from].state == Entry::State::pending) f(entries_[*from]);
}

template <class F>
void Ledger::abandon_all(bool has_workers, F&& drop) {
  for (const std::uint32_t slot : order_) {
    Entry& entry = entries_[slot];
    if (has_workers && entry.state == Entry::State::sent) {
      entry.state = Entry::State::abandoned;
      abandoned_++;
    } else {
      entry.state = Entry::State::idle;
      drop(slot);
    }
  }
  pending_ = 0;
  order_.clear();
  done_.clear();
}

}  // namespace feedlane::loader
