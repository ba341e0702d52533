// SPDX-License-Identifier: Apache-2.0
// The order of a map-style data set: batches of the indices that a sampler yields.
#pragma once

#include <memory>
#include <vector>

#include "feedlane/batch.h"
#include "loader/order.hpp"
#include "sampler/sampler.hpp"

namespace feedlane::loader {

class MapOrder final : public Order {
 public:
  MapOrder(const Config& config, const shm::Segments& segments, std::unique_ptr<sampler::Sampler> sampler)
      : Order(config, segments), sampler_(std::move(sampler)) {}

  Status check_state(const checkpoint::SavedState& state, Error& error) const override;
  Status try_resume(const checkpoint::SavedState& state, Error& error) override;
  [[nodiscard]] std::int64_t count_batches() const override;
  Status draw(Error& error) override;
  shm::TaskMessage message_for(const Entry& entry, std::uint64_t id) override;
  bool settle(const Entry&, Ledger&) override { return false; }
  [[nodiscard]] std::uint64_t sample_limit(std::uint32_t rows) const override { return rows; }
  Status check_rows(const Entry& entry, std::uint32_t rows, const tensors::Made& made, Error& error) const override;
  void on_result(const Entry&, std::uint64_t, const tensors::Made*, Contents&) override {}
  void on_end(const Entry&) override {}
  [[nodiscard]] std::int64_t sample_at(const Entry& entry, std::int64_t position) const override;
  [[nodiscard]] std::int64_t row_sample(const Entry& entry, std::uint32_t row) const override {
    return segments_.index_list(entry.slot)[row];
  }
  [[nodiscard]] std::int64_t number_of(const Entry& entry) const override { return entry.batch; }
  [[nodiscard]] std::int64_t yielded_sample(const Entry& entry, std::uint32_t position) const override;
  void reserve(const Entry& entry, Contents& contents) override;
  void list_samples(const Entry& entry, feedlane_batch& out) override;
  void advance(const Entry& entry, Contents& contents, monitor::EventQueue& events) override;
  [[nodiscard]] std::uint64_t delivered_by(std::uint32_t) const override { return 0; }
  void on_gone(std::uint32_t, const char*, pid_t) override {}
  void on_stuck(std::uint32_t, const char*) override {}
  const char* on_quarantined(std::uint32_t) override { return ""; }
  [[nodiscard]] bool has_shards() const override { return false; }
  [[nodiscard]] const sampler::Sampler* sampler() const override { return sampler_.get(); }

 private:
  Status restart(std::int64_t epoch, Error& error) override;
  Status start_progress(Error& error) override;
  Status go_on(Error& error) override;
  Status save_sampler(const checkpoint::Progress& progress, checkpoint::SavedState& out, Error& error) const override;
  Status pull(Error& error);
  // Saves the position of a sampler that cannot report it later.
  Status save_place(checkpoint::Blob& out, Error& error) const;
  [[nodiscard]] bool makes_batches() const { return sampler_->batch_rows() > 0; }

  std::unique_ptr<sampler::Sampler> sampler_;
  sampler::Sampler::Place place_;
  std::vector<std::int64_t> indices_;   // of the batch that is being drawn
  std::vector<std::int64_t> left_out_;  // see list_samples
};

}  // namespace feedlane::loader
