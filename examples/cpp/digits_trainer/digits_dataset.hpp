// SPDX-License-Identifier: Apache-2.0
// The digits as Feedlane sees them: the fields of a sample, what a worker must be told, and the class that it runs. The
// same class serves every kind of worker, and the trainer itself when it has none.
#pragma once

#include <feedlane/tensor.hpp>
#include <feedlane/worker.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "digits.hpp"

namespace digits {

/// The field numbers, in the order of digits_fields().
constexpr size_t image_field = 0;
constexpr size_t label_field = 1;

/// "image": float32 [8, 8]; "label": int64, a scalar.
std::vector<feedlane::Field> digits_fields();

/// All that a worker needs to know, as the bytes for LoaderOptions::worker_config. A worker may be another process: it
/// gets values, never pointers.
std::string digits_worker_config(const std::string& directory, uint64_t split_seed);

class DigitsDataset {
 public:
  /// Finds everything in the worker's configuration. Throws: the trainer is told E_INIT and why.
  explicit DigitsDataset(const feedlane::WorkerInfo& info);
  /// One digit into its row of the batch.
  void get(const feedlane::Row& row) const;

 private:
  Digits digits_;
};

}  // namespace digits
