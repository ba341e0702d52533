// SPDX-License-Identifier: Apache-2.0
// How far the training is, for a terminal.
#pragma once

#include <cstdint>

#include "../common/progress_bar.hpp"

namespace digits {

class Progress {
 public:
  Progress(int64_t epochs, int64_t batches_per_epoch, bool wanted)
      : epochs_(epochs), batches_per_epoch_(batches_per_epoch), bar_(epochs * batches_per_epoch, wanted) {}

  void show(int64_t epoch, int64_t batches_done, double mean_loss);

 private:
  const int64_t epochs_;
  const int64_t batches_per_epoch_;
  common::ProgressBar bar_;
};

}  // namespace digits
