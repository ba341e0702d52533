// SPDX-License-Identifier: Apache-2.0
// The batches of an epoch under a token budget: shuffled samples are sorted by length within windows and cut into
// batches, which are then shuffled.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace feedlane::sampler {

// The settings that determine an epoch's batches, together with the epoch's number and the world.
struct TokenRules {
  std::uint32_t max_tokens = 1;  // longer samples are left out
  std::uint32_t max_rows = 1;
  std::uint64_t window = 1;  // number of samples that are sorted together
  bool padded = false;       // a batch costs rows * longest length, otherwise the sum of its lengths
  bool shuffle = true;
  bool drop_last = false;
};

// The batches of all ranks, in order. Batch n belongs to rank n % world.
class TokenBatches {
 public:
  struct Batch {
    std::uint32_t first;  // position in the samples' order
    std::uint32_t rows;
  };

  // Cuts the samples of an epoch into batches. `seed` is the epoch's seed.
  TokenBatches(std::span<const std::uint32_t> lengths, const TokenRules& rules, std::uint64_t seed);
  // Makes the number of batches a multiple of `world` by splitting the batches with the most rows. If each batch has
  // only one row left, batches from the start are repeated. With drop_last, the last batches are removed instead.
  void fill(std::uint32_t world);
  // Shuffles groups of `world` batches. A group stays together, so that all ranks' batches of one step have similar
  // lengths.
  void shuffle(std::uint32_t world);
  // Removes the first `batches` batches.
  void skip(std::uint64_t batches);

  [[nodiscard]] std::uint64_t size() const { return batches_.size(); }
  [[nodiscard]] std::span<const std::uint32_t> at(std::uint64_t batch) const {
    const Batch& b = batches_[batch];
    return std::span(order_).subspan(b.first, b.rows);
  }

 private:
  void sort_windows(std::span<const std::uint32_t> lengths);
  void cut(std::span<const std::uint32_t> lengths);
  void split(std::uint64_t times);

  TokenRules rules_;
  std::uint64_t seed_;
  std::vector<std::uint32_t> order_;  // samples
  std::vector<Batch> batches_;
};

}  // namespace feedlane::sampler
