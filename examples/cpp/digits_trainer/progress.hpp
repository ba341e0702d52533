// SPDX-License-Identifier: Apache-2.0
// One line on stderr that says how far the training is. Nothing at all if stderr is no terminal.
#pragma once

#include <chrono>
#include <cstdint>

namespace digits {

class Progress {
 public:
  Progress(int64_t epochs, int64_t batches_per_epoch, bool wanted);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(int64_t epoch, int64_t batches_done, double mean_loss);

 private:
  const int64_t epochs_;
  const int64_t batches_per_epoch_;
  const bool shown_;
  std::chrono::steady_clock::time_point due_{};
};

}  // namespace digits
