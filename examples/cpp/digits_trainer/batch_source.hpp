// SPDX-License-Identifier: Apache-2.0
// Where the training loop's batches come from: Feedlane's loader, or a plain loop in this process to compare it with.
#pragma once

#include <feedlane/loader.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace digits {

constexpr int64_t batch_size = 32;

/// Borrowed: the memory is the source's, until next() or begin() is called again.
struct Batch {
  std::span<const float> images;    ///< rows x 8 x 8
  std::span<const int64_t> labels;  ///< rows
};

/// What fails throws: feedlane::Error or another std::exception.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  virtual void begin(int64_t epoch) = 0;
  /// FEEDLANE_OK, _END (of the epoch) or _INTERRUPTED (the user wants to stop).
  virtual int32_t next(Batch& batch) = 0;

  virtual int64_t batches_per_epoch() const = 0;
  /// For statistics; null when no loader is behind this.
  virtual const feedlane::Loader* loader() const { return nullptr; }
};

}  // namespace digits
