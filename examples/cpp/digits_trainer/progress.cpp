// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <unistd.h>

#include <cstdio>
#include <string>

namespace digits {
namespace {

constexpr int64_t bar_columns = 30;
/// Often enough for the eye; more would take time from the training.
constexpr std::chrono::milliseconds interval{50};

}  // namespace

Progress::Progress(int64_t epochs, int64_t batches_per_epoch, bool wanted)
    : epochs_(epochs), batches_per_epoch_(batches_per_epoch), shown_(wanted && isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\033[K", stderr);  // what comes next starts on a clean line
}

void Progress::show(int64_t epoch, int64_t batches_done, double mean_loss) {
  if (!shown_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < due_) return;
  due_ = now + interval;
  const int64_t done = epoch * batches_per_epoch_ + batches_done;
  const auto filled = static_cast<size_t>(bar_columns * done / (epochs_ * batches_per_epoch_));
  const std::string bar = std::string(filled, '#') + std::string(static_cast<size_t>(bar_columns) - filled, '.');
  std::fprintf(stderr, "\r[%s] epoch %lld/%lld, batch %lld/%lld, loss %.4f ", bar.c_str(),
               static_cast<long long>(epoch + 1), static_cast<long long>(epochs_),
               static_cast<long long>(batches_done), static_cast<long long>(batches_per_epoch_), mean_loss);
  std::fflush(stderr);
}

}  // namespace digits
