// SPDX-License-Identifier: Apache-2.0
// What order the indices of an epoch come in. One file a kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "sampler/rank.hpp"

namespace feedlane::sampler {

// Yields the indices of an epoch in order. One thread at a time.
class Sampler {
 public:
  virtual ~Sampler() = default;
  // Another sampler of the same definition, at the start of epoch 0. A custom one shares its callbacks with its copies.
  [[nodiscard]] virtual std::unique_ptr<Sampler> clone() const = 0;
  // `seed` is the loader's base seed; only custom samplers look at it.
  virtual Status restart(std::int64_t epoch, std::uint64_t seed, Error& error) = 0;
  // Up to `cap` indices; fewer only at the end (batch samplers: one batch); END when none is left.
  virtual Status next(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error& error) = 0;
  // Of indices, or of batches for a batch sampler; -1: unknown.
  [[nodiscard]] virtual std::int64_t length() const = 0;
  // > 0: a batch sampler: each `next` is one batch of at most so many, and `cap` must not be less.
  [[nodiscard]] virtual std::int64_t batch_rows() const { return 0; }

  // Where its indices stand in the order that all ranks share: the k-th at first + k * stride. Seeds come from it, so that
  // a sample is augmented the same whichever rank has it.
  struct Place {
    std::int64_t first = 0;
    std::int64_t stride = 1;
  };
  [[nodiscard]] virtual Place place() const { return {}; }

  // A seekable sampler can be saved as of any earlier position of the epoch; others only where they stand.
  [[nodiscard]] virtual bool seekable() const { return true; }
  // Appends to `out` what `load` needs: what identifies the definition, the epoch, the position, a checksum. `position`:
  // how many indices (batch samplers: batches) of the epoch were yielded, more than there are meaning the end, negative
  // where it stands; one that isn't seekable doesn't look at it.
  virtual Status save(std::int64_t position, std::vector<std::byte>& out, Error& error) const = 0;
  // After `restart` of that epoch: goes on behind what was saved. E_ARGUMENT ("state", the two numbers) for a state of
  // another definition or epoch, E_CORRUPT for a damaged one, E_UNSUPPORTED for a custom sampler that can't. After a
  // failure it has to be restarted.
  virtual Status load(std::span<const std::byte> state, Error& error) = 0;

  // Of a distributed sampler: where its rank came from, and a line if other sources disagree; else empty.
  [[nodiscard]] virtual const char* rank_source() const { return ""; }
  [[nodiscard]] virtual const char* rank_warning() const { return ""; }
};

// The structs are what read_versioned made of the caller's; each factory checks what they say.
Status make_sequential(std::int64_t length, std::unique_ptr<Sampler>& out, Error& error);
Status make_random(const feedlane_random_config& config, std::unique_ptr<Sampler>& out, Error& error);
Status make_subset(const std::int64_t* indices, std::uint64_t count, std::int32_t in_order, std::uint64_t seed,
                   std::unique_ptr<Sampler>& out, Error& error);
Status make_weighted(const double* weights, std::uint64_t count, const feedlane_weighted_config& config,
                     std::unique_ptr<Sampler>& out, Error& error);
// Over a copy of `inner`.
Status make_batch(const Sampler& inner, std::int64_t batch_size, std::int32_t drop_last, std::unique_ptr<Sampler>& out,
                  Error& error);
// World 0: the rank is asked of `environment`.
Status make_distributed(const feedlane_distributed_config& config, const Environment& environment,
                        std::unique_ptr<Sampler>& out, Error& error);
// From success on, `drop` is called when the last copy goes.
Status make_custom(const feedlane_sampler_callbacks& callbacks, std::unique_ptr<Sampler>& out, Error& error);

}  // namespace feedlane::sampler
