// SPDX-License-Identifier: Apache-2.0
// The training loop. It doesn't know where its batches come from, and trains on them where they lie.
#pragma once

#include <cstdint>
#include <cstdio>
#include <vector>

#include "batch_source.hpp"
#include "digits.hpp"
#include "network.hpp"
#include "progress.hpp"

namespace digits {

/// The digits that the network never trains on.
struct HeldOut {
  explicit HeldOut(const Digits& digits);

  std::vector<float> images;
  std::vector<int64_t> labels;
};

struct EpochResult {
  Score train;  ///< taken while training: each batch before its step, moved pixels and all
  Score test;   ///< after the epoch
};

struct TrainingResult {
  std::vector<EpochResult> epochs;
  int64_t batches = 0;
  double seconds = 0;  ///< of the epochs, without the tests between them
};

/// FEEDLANE_OK or _INTERRUPTED; what fails throws. `losses` may be null: a line for each epoch, see usage.
int32_t train(BatchSource& source, Network& network, const HeldOut& held_out, int64_t epochs, std::FILE* losses,
              Progress& progress, TrainingResult& result);

}  // namespace digits
