// SPDX-License-Identifier: Apache-2.0
// The windows as Feedlane sees them: the field of a sample and the class that a worker runs.
#pragma once

#include <feedlane/dataset.hpp>

#include <vector>

#include "corpus.hpp"

namespace tokens {

/// "tokens": int32 [length + 1]. All but the last are the inputs, all but the first the targets.
std::vector<feedlane::Field> token_fields(const CorpusFiles& files);

class TokenDataset {
 public:
  explicit TokenDataset(const feedlane::WorkerInfo& info) : corpus_(CorpusFiles::unpack(info.config())) {}
  /// Whole batches: a window takes less than a microsecond.
  void fetch(const feedlane::Task& task) const;

 private:
  Corpus corpus_;
};

}  // namespace tokens
