// SPDX-License-Identifier: Apache-2.0
// The order of an epoch's batches: their source, the epoch's progress, and what a saved state must record about it.
//
// MapOrder draws the batches' indices from a sampler. ShardOrder takes batches round-robin from the shards of an
// iterable data set, one shard per worker. No other part of the loader depends on the difference.
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

  // Whether the numbers of a saved state allow this order to resume from it. E_ARGUMENT names a number that differs.
  virtual Status check_state(const checkpoint::SavedState& state, Error& error) const = 0;
  // Checks the state's contents, after the configuration has taken the state's seed.
  virtual Status try_resume(const checkpoint::SavedState& state, Error& error) = 0;
  // The state to resume from. It is kept until an epoch has begun, because a failed `begin` may be called again.
  [[nodiscard]] std::optional<checkpoint::SavedState>& resume() { return resume_; }

  // Whether each batch belongs to a shard. Then only one worker can make it, and its task may end without a batch (END)
  // or because the shard cannot be started (E_INIT).
  [[nodiscard]] virtual bool has_shards() const = 0;

  // ---- an epoch ----

  // Starts an epoch from its beginning or from the saved state.
  Status start(std::int64_t epoch, Error& error);
  [[nodiscard]] std::int64_t epoch() const { return epoch_; }
  // Batches of this epoch; -1: unknown.
  [[nodiscard]] std::int64_t batches() const { return batches_; }
  // Counts the batches of a complete epoch; -1: unknown.
  [[nodiscard]] virtual std::int64_t count_batches() const = 0;
  // Whether config.max_batches batches were yielded. Batches in flight are then not needed.
  [[nodiscard]] bool is_cut() const { return progress_.batches >= config_.max_batches; }
  // No batch is left to be drawn.
  [[nodiscard]] bool is_exhausted() const { return is_exhausted_; }
  [[nodiscard]] checkpoint::Progress& progress() { return progress_; }
  [[nodiscard]] const checkpoint::Progress& progress() const { return progress_; }
  // Writes the checkpoint of this progress to `out`. E_UNSUPPORTED for a sampler that cannot be saved.
  Status save(const checkpoint::Progress& progress, checkpoint::SavedState& out, Error& error) const;

  // ---- drawing ----

  // Whether the next batch has a slot. The slot is kept when a draw fails; drop_drawn returns it.
  [[nodiscard]] bool has_slot() const { return drawn_.has_slot; }
  void use_slot(std::uint32_t slot) {
    drawn_.slot = slot;
    drawn_.has_slot = true;
  }
  // Determines the next batch, or sets is_exhausted if none is left. AGAIN: a live sampler has too few indices now.
  // After that or a failure, the next draw continues at this point.
  virtual Status draw(Error& error) = 0;
  // Adds the drawn batch to the ledger.
  const Entry& add_drawn(Ledger& ledger);
  // Discards the drawn batch. Returns its slot, if it has one.
  std::optional<std::uint32_t> drop_drawn();
  // The message that sends a batch as task `id`.
  virtual shm::TaskMessage message_for(const Entry& entry, std::uint64_t id) = 0;
  // Finishes a pending batch that no longer needs a worker. False: it needs one.
  virtual bool settle(const Entry& entry, Ledger& ledger) = 0;

  // ---- results ----

  // The most samples that a task with this many rows may process.
  [[nodiscard]] virtual std::uint64_t sample_limit(std::uint32_t rows) const = 0;
  // Whether a batch may have this many rows and this many samples left out. E_CORRUPT.
  virtual Status check_rows(const Entry& entry, std::uint32_t rows, const tensors::Made& made, Error& error) const = 0;
  // A result has arrived for a task that processed `taken` samples. `made`: the batch, or nullptr if it failed. If an
  // allocation fails, nothing changes.
  virtual void on_result(const Entry& entry, std::uint64_t taken, const tensors::Made* made, Contents& contents) = 0;
  // A task reported that its shard has no more samples.
  virtual void on_end(const Entry& entry) = 0;
  // The number of the sample at `position` of a task whose result has just arrived; -1: none.
  [[nodiscard]] virtual std::int64_t sample_at(const Entry& entry, std::int64_t position) const = 0;

  // The number of the sample that belongs to a row of an unfinished task; -1: unknown.
  [[nodiscard]] virtual std::int64_t row_sample(const Entry& entry, std::uint32_t row) const = 0;

  // ---- yielding ----

  // The number of the batch about to be yielded.
  [[nodiscard]] virtual std::int64_t number_of(const Entry& entry) const = 0;
  // Like sample_at, for the batch about to be yielded.
  [[nodiscard]] virtual std::int64_t yielded_sample(const Entry& entry, std::uint32_t position) const = 0;
  // Allocates memory for `list_samples` and `advance`, so that they cannot fail.
  virtual void reserve(const Entry& entry, Contents& contents);
  // Lists the indices of a batch's rows and of the samples that were left out.
  virtual void list_samples(const Entry& entry, feedlane_batch& out) = 0;
  // The trainer has received this batch, or never will.
  virtual void advance(const Entry& entry, Contents& contents, monitor::EventQueue& events) = 0;

  // ---- workers that end or hang ----

  // Samples that the worker's earlier tasks delivered in this epoch. Its successor may have to skip them.
  [[nodiscard]] virtual std::uint64_t delivered_by(std::uint32_t worker) const = 0;
  // A worker is gone. `how` completes the text "worker 1: process 2 ...".
  virtual void on_gone(std::uint32_t worker, const char* how, pid_t pid) = 0;
  // A worker hangs and cannot be ended. `what` describes it.
  virtual void on_stuck(std::uint32_t worker, const char* what) = 0;
  // The worker's batch ended too many workers and is given up. Returns what else is lost with it, for the message.
  virtual const char* on_quarantined(std::uint32_t worker) = 0;

  // The sampler behind the order; nullptr: none. Its rank never changes, so any thread may read it.
  [[nodiscard]] virtual const sampler::Sampler* sampler() const { return nullptr; }

 protected:
  // Returns to the start of an epoch. Called by `start` before anything else changes.
  virtual Status restart(std::int64_t epoch, Error& error) = 0;
  // Then start_progress sets the progress of the epoch's start, and go_on that of the saved state.
  virtual Status start_progress(Error& error) = 0;
  virtual Status go_on(Error& error) = 0;
  virtual Status save_sampler(const checkpoint::Progress& progress, checkpoint::SavedState& out,
                              Error& error) const = 0;

  // The next batch and its slot.
  struct Drawn {
    bool has_slot = false;
    bool is_last = false;
    std::uint32_t slot = 0;
    std::uint32_t rows = 0;  // 0: nothing drawn yet
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
  checkpoint::Progress progress_;  // as of the newest yielded batch
  std::optional<checkpoint::SavedState> resume_;
};

// Makes the order for this configuration. Moves the sampler out of it.
std::unique_ptr<Order> make_order(Config& config, const shm::Segments& segments);

}  // namespace feedlane::loader
