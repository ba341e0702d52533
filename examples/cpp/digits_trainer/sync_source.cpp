// SPDX-License-Identifier: Apache-2.0
// Draws indices and decodes digits in the training loop itself.
#include "sync_source.hpp"

#include <utility>

#include "../common/interrupt.hpp"

namespace digits {

SyncSource::SyncSource(feedlane::Sampler sampler, const Digits& digits, uint64_t base_seed)
    : sampler_(std::move(sampler)),
      digits_(digits),
      base_seed_(base_seed),
      indices_(batch_size),
      images_(batch_size * pixels),
      labels_(batch_size) {}

void SyncSource::begin(int64_t epoch) {
  epoch_ = epoch;
  position_ = 0;
  sampler_.restart(epoch);
}

int32_t SyncSource::next(Batch& batch) {
  if (common::interrupt_requested()) return FEEDLANE_INTERRUPTED;
  const size_t rows = sampler_.next(indices_);
  if (rows == 0) return FEEDLANE_END;
  for (size_t row = 0; row < rows; row++) {
    const uint64_t seed = feedlane_row_seed(base_seed_, epoch_, position_++);
    digits_.decode_train(static_cast<size_t>(indices_[row]), seed, &images_[row * pixels], &labels_[row]);
  }
  batch = {std::span(images_).first(rows * pixels), std::span(labels_).first(rows)};
  return FEEDLANE_OK;
}

int64_t SyncSource::batches_per_epoch() const { return (sampler_.length() + batch_size - 1) / batch_size; }

}  // namespace digits
