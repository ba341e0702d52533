// SPDX-License-Identifier: Apache-2.0
// The order of an iterable data set: each worker has one shard, and batches are taken from the shards round-robin. The
// order depends on the yielded batches, not on timing.
#pragma once

#include <vector>

#include "feedlane/batch.h"
#include "loader/order.hpp"

namespace feedlane::loader {

class ShardOrder final : public Order {
 public:
  using Order::Order;

  Status check_state(const checkpoint::SavedState& state, Error& error) const override;
  Status try_resume(const checkpoint::SavedState&, Error&) override { return FEEDLANE_OK; }
  [[nodiscard]] std::int64_t count_batches() const override;
  Status draw(Error& error) override;
  shm::TaskMessage message_for(const Entry& entry, std::uint64_t id) override;
  bool settle(const Entry& entry, Ledger& ledger) override;
  [[nodiscard]] std::uint64_t sample_limit(std::uint32_t rows) const override;
  Status check_rows(const Entry& entry, std::uint32_t rows, const tensors::Made& made, Error& error) const override;
  void on_result(const Entry& entry, std::uint64_t taken, const tensors::Made* made, Contents& contents) override;
  void on_end(const Entry& entry) override { shards_[entry.home].is_exhausted = true; }
  [[nodiscard]] std::int64_t sample_at(const Entry& entry, std::int64_t position) const override;
  [[nodiscard]] std::int64_t row_sample(const Entry&, std::uint32_t) const override { return -1; }
  [[nodiscard]] std::int64_t number_of(const Entry&) const override { return progress_.batches; }
  [[nodiscard]] std::int64_t yielded_sample(const Entry& entry, std::uint32_t position) const override;
  void list_samples(const Entry&, feedlane_batch&) override {}
  void advance(const Entry& entry, Contents& contents, monitor::EventQueue& events) override;
  [[nodiscard]] std::uint64_t delivered_by(std::uint32_t worker) const override;
  void on_gone(std::uint32_t worker, const char* how, pid_t pid) override;
  void on_stuck(std::uint32_t worker, const char* what) override;
  const char* on_quarantined(std::uint32_t worker) override;
  [[nodiscard]] bool has_shards() const override { return true; }

 private:
  // One worker's shard as of the results received. `progress_` describes it as of the yielded batches.
  struct Shard {
    bool is_fresh = true;       // its next task restarts it, or resumes it after `taken` samples
    bool is_exhausted = false;  // no samples are left, so its next task needs no worker
    bool lost_state = false;    // the saved state is older than `taken`: a later batch failed and saved nothing
    std::uint64_t taken = 0;
    checkpoint::Blob state;
    Error loss;  // its worker died and it cannot be reopened; reported once
  };

  Status restart(std::int64_t, Error&) override { return FEEDLANE_OK; }
  Status start_progress(Error& error) override;
  Status go_on(Error& error) override;
  Status save_sampler(const checkpoint::Progress&, checkpoint::SavedState& out, Error&) const override {
    out.iterable = true;
    out.ranks = config_.world;
    out.rank = config_.rank;
    return FEEDLANE_OK;
  }
  void warn_of_length(std::int64_t before, monitor::EventQueue& events) const;

  std::vector<Shard> shards_;
  std::uint32_t next_shard_ = 0;
};

}  // namespace feedlane::loader
