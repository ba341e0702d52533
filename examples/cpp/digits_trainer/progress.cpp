// SPDX-License-Identifier: Apache-2.0
// Prints epoch, loss and accuracy while the training runs.
#include "progress.hpp"

#include <cstdio>

namespace digits {

void Progress::show(int64_t epoch, int64_t batches_done, double mean_loss) {
  if (!bar_.due()) return;
  char words[128];
  std::snprintf(words, sizeof words, "epoch %lld/%lld, batch %lld/%lld, loss %.4f", static_cast<long long>(epoch + 1),
                static_cast<long long>(epochs_), static_cast<long long>(batches_done),
                static_cast<long long>(batches_per_epoch_), mean_loss);
  bar_.show(epoch * batches_per_epoch_ + batches_done, words);
}

}  // namespace digits
