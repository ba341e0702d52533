// SPDX-License-Identifier: Apache-2.0
// Draws the progress line.
#include "progress_bar.hpp"

#include <unistd.h>

#include <cstdio>

namespace common {
namespace {

constexpr int64_t bar_columns = 30;
constexpr std::chrono::milliseconds interval{50};

}  // namespace

ProgressBar::ProgressBar(int64_t total, bool wanted) : total_(total), shown_(wanted && isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (shown_) std::fputs("\r\033[K", stderr);  // what comes next starts on a clean line
}

bool ProgressBar::due() {
  if (!shown_) return false;
  const auto now = std::chrono::steady_clock::now();
  if (now < due_) return false;
  due_ = now + interval;
  return true;
}

void ProgressBar::show(int64_t done, const std::string& words) const {
  const auto filled = static_cast<size_t>(total_ > 0 ? bar_columns * done / total_ : 0);
  const std::string bar = std::string(filled, '#') + std::string(static_cast<size_t>(bar_columns) - filled, '.');
  std::fprintf(stderr, "\r[%s] %s ", bar.c_str(), words.c_str());
  std::fflush(stderr);
}

}  // namespace common
