// SPDX-License-Identifier: Apache-2.0
// The interface of samplers, which define the order of an epoch's indices, and their factory. Each kind has its own
// file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "feedlane/sampler.h"
#include "sampler/rank.hpp"

namespace feedlane::sampler {

// Yields the indices of an epoch in order. Thread safety: one thread at a time.
class Sampler {
 public:
  virtual ~Sampler() = default;
  // Another sampler with the same definition, at the start of epoch 0. Copies of a custom sampler share its callbacks.
  [[nodiscard]] virtual std::unique_ptr<Sampler> clone() const = 0;
  // `seed` is the loader's base seed; only custom samplers use it.
  virtual Status restart(std::int64_t epoch, std::uint64_t seed, Error& error) = 0;
  // Up to `cap` indices, fewer only at the end (batch samplers: one batch). END if none is left. AGAIN if a live sampler
  // has too few now; it keeps them.
  virtual Status next(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error& error) = 0;
  // Number of indices in an epoch, or of batches for a batch sampler; -1: unknown.
  [[nodiscard]] virtual std::int64_t length() const = 0;
  // > 0 for a batch sampler: each `next` returns one batch of at most this many indices, and `cap` must not be less.
  [[nodiscard]] virtual std::int64_t batch_rows() const { return 0; }
  // > 0: a live sampler, and the descriptor that is readable when it may have indices after AGAIN.
  [[nodiscard]] virtual int wake_fd() const { return 0; }

  // Positions in the order that all ranks share: index k is at first + k * stride. Seeds are derived from the
  // positions, so a sample is augmented in the same way on any rank.
  struct Place {
    std::int64_t first = 0;
    std::int64_t stride = 1;
  };
  [[nodiscard]] virtual Place place() const { return {}; }

  // A seekable sampler can be saved at any earlier position of the epoch, others only at the current position.
  [[nodiscard]] virtual bool seekable() const { return true; }
  // Appends the state to `out`: the facts that identify the definition, the epoch, the position, a checksum. `position`
  // is the number of indices (batch samplers: batches) of the epoch that were yielded. If it exceeds the number that
  // exist, it means the end; if it is negative, the current position. It is ignored unless the sampler is seekable.
  virtual Status save(std::int64_t position, std::vector<std::byte>& out, Error& error) const = 0;
  // Call after `restart` with the state's epoch. Continues after the saved position. E_ARGUMENT ("state", the two
  // numbers): the state has another definition or epoch. E_CORRUPT: it is damaged. E_UNSUPPORTED: a custom sampler
  // can't load. After a failure, the sampler must be restarted.
  virtual Status load(std::span<const std::byte> state, Error& error) = 0;

  // Distributed samplers: the source of the rank, and a line if other sources differ. Others: empty.
  [[nodiscard]] virtual const char* rank_source() const { return ""; }
  [[nodiscard]] virtual const char* rank_warning() const { return ""; }
};

// Makes a sampler of config.kind. `inner` is the sampler of config.inner, or nullptr. If config.world and
// config.detect_off are 0, the rank is detected from `environment`. The config comes from read_versioned; each kind
// checks the members that it reads.
Status make(const feedlane_sampler_config& config, const Sampler* inner, const Environment& environment,
            std::unique_ptr<Sampler>& out, Error& error);

}  // namespace feedlane::sampler
