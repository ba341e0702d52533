// SPDX-License-Identifier: Apache-2.0
// Where the training loop's batches come from: Feedlane's loader, or a plain loop in this process to compare it with.
#pragma once

#include <feedlane.h>

#include <cstddef>
#include <cstdint>

namespace digits {

constexpr int64_t batch_size = 32;

/// Borrowed: the memory is the source's, until release().
struct Batch {
  const float* images = nullptr;    ///< rows x 8 x 8
  const int64_t* labels = nullptr;  ///< rows
  size_t rows = 0;
};

/// All calls return a FEEDLANE_ status; a negative one has been told to the user already.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  virtual int32_t begin(int64_t epoch) = 0;
  /// OK, END (of the epoch), INTERRUPTED (the user wants to stop) or an error.
  virtual int32_t next(Batch& batch) = 0;
  /// Gives the batch of the last next() back.
  virtual int32_t release() = 0;

  virtual int64_t batches_per_epoch() const = 0;
  /// For statistics; null when no loader is behind this.
  virtual const feedlane_loader* loader() const { return nullptr; }
};

}  // namespace digits
