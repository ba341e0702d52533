// SPDX-License-Identifier: Apache-2.0
// What the program prints on stdout when the training is over.
#pragma once

#include <feedlane/loader.hpp>

#include "training.hpp"

namespace digits {

/// Loss and accuracies by epoch, then the pace.
void print_training(const TrainingResult& result);

/// How long the trainer waited for batches and what each worker did. Call it while the workers live.
void print_workers(const feedlane::Loader& loader, double seconds);

}  // namespace digits
