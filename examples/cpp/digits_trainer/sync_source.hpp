// SPDX-License-Identifier: Apache-2.0
// The loop that one would write without a loader: draw indices, decode them, train. It uses the loader's sampler and
// the loader's seeds, so that its batches are byte for byte those of the loader.
#pragma once

#include <feedlane/sampler.hpp>

#include <cstdint>
#include <vector>

#include "batch_source.hpp"
#include "digits.hpp"

namespace digits {

class SyncSource final : public BatchSource {
 public:
  /// Takes the digits to train on from `digits`, which must outlive the source.
  SyncSource(feedlane::Sampler sampler, const Digits& digits, uint64_t base_seed);

  void begin(int64_t epoch) override;
  int32_t next(Batch& batch) override;
  int64_t batches_per_epoch() const override;

 private:
  feedlane::Sampler sampler_;
  const Digits& digits_;
  const uint64_t base_seed_;
  int64_t epoch_ = 0;
  int64_t position_ = 0;  ///< samples of this epoch drawn so far
  std::vector<int64_t> indices_;
  std::vector<float> images_;
  std::vector<int64_t> labels_;
};

}  // namespace digits
