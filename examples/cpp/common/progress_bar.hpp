// SPDX-License-Identifier: Apache-2.0
// One line on stderr that says how far a program is. Nothing at all if stderr is no terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace common {

class ProgressBar {
 public:
  ProgressBar(int64_t total, bool wanted);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Whether it is time to show something: often enough for the eye, seldom enough for the work.
  bool due();
  /// `done` of the total, with some words.
  void show(int64_t done, const std::string& words) const;

 private:
  const int64_t total_;
  const bool shown_;
  std::chrono::steady_clock::time_point due_{};
};

}  // namespace common
