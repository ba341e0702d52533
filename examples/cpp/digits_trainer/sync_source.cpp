// SPDX-License-Identifier: Apache-2.0
#include "sync_source.hpp"

#include <utility>

#include "interrupt.hpp"

namespace digits {

SyncSource::SyncSource(Sampler sampler, const Digits& digits, uint64_t base_seed)
    : sampler_(std::move(sampler)),
      digits_(digits),
      base_seed_(base_seed),
      indices_(batch_size),
      images_(batch_size * pixels),
      labels_(batch_size) {}

int32_t SyncSource::begin(int64_t epoch) {
  epoch_ = epoch;
  position_ = 0;
  auto error = initialised<feedlane_error>();
  const int32_t status = feedlane_sampler_restart(sampler_.get(), epoch, &error);
  return status < 0 ? complain("sampler", status, error) : status;
}

int32_t SyncSource::next(Batch& batch) {
  if (interrupt_requested()) return FEEDLANE_INTERRUPTED;
  auto error = initialised<feedlane_error>();
  uint64_t rows = 0;
  const int32_t status = feedlane_sampler_next(sampler_.get(), indices_.data(), indices_.size(), &rows, &error);
  if (status < 0) return complain("sampler", status, error);
  if (status != FEEDLANE_OK) return status;
  for (size_t row = 0; row < rows; row++) {
    const uint64_t seed = feedlane_row_seed(base_seed_, epoch_, position_++);
    digits_.decode_train(static_cast<size_t>(indices_[row]), seed, &images_[row * pixels], &labels_[row]);
  }
  batch = {images_.data(), labels_.data(), static_cast<size_t>(rows)};
  return FEEDLANE_OK;
}

int64_t SyncSource::batches_per_epoch() const {
  int64_t samples = 0;
  feedlane_sampler_length(sampler_.get(), &samples);
  return (samples + batch_size - 1) / batch_size;
}

}  // namespace digits
