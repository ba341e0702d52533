// SPDX-License-Identifier: Apache-2.0
// The failure of a loader: the first error that keeps it from going on, returned by each `next` until the next `begin`.
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
  // What is made is still yielded when workers die too often. A data set that cannot be opened ends the epoch at once.
  [[nodiscard]] bool ends_at_once() const { return error.code == FEEDLANE_E_INIT || is_told; }
  void clear() { *this = {}; }
};

}  // namespace feedlane::loader
