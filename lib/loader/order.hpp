// SPDX-License-Identifier: Apache-2.0
// The order of an epoch's batches: where they come from, how far the epoch has come, and what a state has to say of it.
//
// MapOrder draws the batches' indices from a sampler. ShardOrder takes the shards of an iterable data set, one of each worker,
// round-robin. Nothing else in the loader knows the difference.
//
// Used by the loader's thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/progress.hpp"
#include "checkpoint/state.hpp"
#include "feedlane/batch.h"
#include "loader/config.hpp"
#include "loader/ledger.hpp"
#include "monitor/events.hpp"
#include "shm/segment.hpp"

namespace feedlane::loader {

class Order {
 public:
  // Both must outlive the order.
  Order(const Config& config, const shm::Segments& segments) : config_(config), segments_(segments) {}
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;
  virtual ~Order() = default;

  // ---- resuming ----

  // Whether this order can resume from a saved state, by its numbers. E_ARGUMENT names what differs.
  virtual Status check_state(const checkpoint::SavedState& state, Error& error) const = 0;
  // The same by its contents, after the configuration has taken the state's seed.
  virtual Status try_resume(const checkpoint::SavedState& state, Error& error) = 0;
  // The state to resume from. It is dropped once an epoch has begun: a `begin` that fails is called again.
  [[nodiscard]] std::optional<checkpoint::SavedState>& resume() { return resume_; }

  // Each batch is of a shard: one worker alone can make it, and its task may end without a batch (END), or because the shard
  // cannot be started (E_INIT).
  [[nodiscard]] virtual bool has_shards() const = 0;

  // ---- an epoch ----

  // At the start of an epoch, or where the saved state left it.
  Status start(std::int64_t epoch, Error& error);
  [[nodiscard]] std::int64_t epoch() const { return epoch_; }
  // Batches of this epoch; -1: unknown.
  [[nodiscard]] std::int64_t batches() const { return batches_; }
  // Counts the batches of a whole epoch; -1: unknown.
  [[nodiscard]] virtual std::int64_t count_batches() const = 0;
  // As many batches as config.max_batches were yielded: those that are in flight are not wanted.
  [[nodiscard]] bool is_cut() const { return progress_.batches >= config_.max_batches; }
  // No batch is left to be drawn.
  [[nodiscard]] bool is_exhausted() const { return is_exhausted_; }
  [[nodiscard]] checkpoint::Progress& progress() { return progress_; }
  [[nodiscard]] const checkpoint::Progress& progress() const { return progress_; }
  // What a checkpoint of this progress holds. E_UNSUPPORTED for a sampler that cannot be saved.
  Status save(const checkpoint::Progress& progress, checkpoint::SavedState& out, Error& error) const;

  // ---- drawing ----

  // The slot of the next batch. It is kept when a draw fails, and given back by drop_drawn.
  [[nodiscard]] bool has_slot() const { return drawn_.has_slot; }
  void use_slot(std::uint32_t slot) {
    drawn_.slot = slot;
    drawn_.has_slot = true;
  }
  // Finds out all that has to be known of the next batch, or that there is none: is_exhausted. After a failure the next
  // draw goes on from there.
  virtual Status draw(Error& error) = 0;
  // What was drawn becomes a batch of the ledger.
  const Entry& add_drawn(Ledger& ledger);
  // Forgets what was drawn. Returns its slot, if there is one.
  std::optional<std::uint32_t> drop_drawn();
  // The message that sends a batch as task `id`.
  virtual shm::TaskMessage message_for(const Entry& entry, std::uint64_t id) = 0;
  // A pending batch that needs no worker any more is finished here. False: it needs one.
  virtual bool settle(const Entry& entry, Ledger& ledger) = 0;

  // ---- results ----

  // Samples that a task of so many rows may deal with.
  [[nodiscard]] virtual std::uint64_t sample_limit(std::uint32_t rows) const = 0;
  // Whether a batch may have so many rows, and so many samples left out. E_CORRUPT.
  virtual Status check_rows(const Entry& entry, std::uint32_t rows, const arena::Made& made, Error& error) const = 0;
  // A result is in: `taken` samples were dealt with, `made`: of a batch that was made, else nullptr. Nothing counts if memory
  // is too short.
  virtual void on_result(const Entry& entry, std::uint64_t taken, const arena::Made* made, Contents& contents) = 0;
  // A task said that its shard has no more samples.
  virtual void on_end(const Entry& entry) = 0;
  // The number of the sample at `position` of a task, as its result comes in; -1: none.
  [[nodiscard]] virtual std::int64_t sample_at(const Entry& entry, std::int64_t position) const = 0;

  // The number of the sample that a row of a task in hand is of; -1: not known.
  [[nodiscard]] virtual std::int64_t row_sample(const Entry& entry, std::uint32_t row) const = 0;

  // ---- batches in the trainer's hands ----

  // The number that the batch about to be yielded has.
  [[nodiscard]] virtual std::int64_t number_of(const Entry& entry) const = 0;
  // As sample_at, of the batch about to be yielded.
  [[nodiscard]] virtual std::int64_t yielded_sample(const Entry& entry, std::uint32_t position) const = 0;
  // Memory for `list_samples` and `advance`, so that they cannot fail.
  virtual void reserve(const Entry& entry, Contents& contents);
  // Fills in the indices of a batch's rows and of what was left out.
  virtual void list_samples(const Entry& entry, feedlane_batch& out) = 0;
  // The trainer has this batch, or will never have it.
  virtual void advance(const Entry& entry, Contents& contents, monitor::EventQueue& events) = 0;

  // ---- workers that end or hang ----

  // Samples that the worker's earlier tasks delivered in this epoch, which its successor may have to pass over.
  [[nodiscard]] virtual std::uint64_t delivered_by(std::uint32_t worker) const = 0;
  // A worker is gone: `how` is the end of "worker 1: process 2 ...".
  virtual void on_gone(std::uint32_t worker, const char* how, pid_t pid) = 0;
  // A worker hangs and cannot be ended. `what` describes it.
  virtual void on_stuck(std::uint32_t worker, const char* what) = 0;
  // The batch ended too many workers and is given up. Returns what else is lost by it, for the message.
  virtual const char* on_quarantined(std::uint32_t worker) = 0;

  // The sampler that the order comes from, nullptr: none. Its rank does not change: any thread.
  [[nodiscard]] virtual const sampler::Sampler* sampler() const { return nullptr; }

 protected:
  // Back to the start of an epoch, before anything else changes.
  virtual Status restart(std::int64_t epoch, Error& error) = 0;
  // After it: what the epoch's progress is at its start; and after that, where the saved state says that it stands.
  virtual Status start_progress(Error& error) = 0;
  virtual Status go_on(Error& error) = 0;
  virtual Status save_sampler(const checkpoint::Progress& progress, checkpoint::SavedState& out,
                              Error& error) const = 0;

  // The batch to come, with its slot.
  struct Drawn {
    bool has_slot = false;
    bool is_last = false;
    std::uint32_t slot = 0;
    std::uint32_t rows = 0;  // 0: nothing was drawn yet
    std::uint32_t home = Entry::anyone;
    bool is_bound = false;
    checkpoint::Blob sampler_state;
  };

  const Config& config_;
  const shm::Segments& segments_;
  std::int64_t epoch_ = 0;
  std::int64_t batches_ = 0;
  std::int64_t next_batch_ = 0;
  std::int64_t next_position_ = 0;
  bool is_exhausted_ = false;
  Drawn drawn_;
  checkpoint::Progress progress_;  // as of the newest batch that was yielded
  std::optional<checkpoint::SavedState> resume_;
};

// The order that this configuration asks for. The sampler is moved out of it.
std::unique_ptr<Order> make_order(Config& config, const shm::Segments& segments);

}  // namespace feedlane::loader
