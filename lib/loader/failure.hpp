// SPDX-License-Identifier: Apache-2.0
// The failure of a loader: the first error that prevents it from continuing. Each `next` returns it until the next
// `begin`.
#pragma once

#include "base/error.hpp"

namespace feedlane::loader {

struct Failure {
  Error error;  // code OK: none
  bool is_told = false;

  void set(const Error& first) {
    if (error.code == FEEDLANE_OK) error = first;
  }
  [[nodiscard]] bool is_set() const { return error.code != FEEDLANE_OK; }
  // If workers die too often, finished batches are still yielded. A data set that cannot be opened ends the epoch at
  // once.
  [[nodiscard]] bool ends_at_once() const { return error.code == FEEDLANE_E_INIT || is_told; }
  void clear() { *this = {}; }
};

}  // namespace feedlane::loader
