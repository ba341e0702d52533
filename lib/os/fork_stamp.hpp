// SPDX-License-Identifier: Apache-2.0
// Detects that a handle is used in a forked child.
#pragma once

#include <cstdint>

#include "base/error.hpp"

namespace feedlane::os {

// Distinguishes a forked child from the process that created a handle, with one load: the stamp's word is on a page
// that the kernel zeroes in the child (MADV_WIPEONFORK). Needs no atfork handler, and no getpid on the hot path.
class ForkStamp {
 public:
  // E_OS if the kernel doesn't support such a page.
  Status take(Error& error);
  // Held by this library during a fork, so that in the child no thread that doesn't exist there holds the mutex.
  class Lock {
   public:
    Lock();
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
  };
  [[nodiscard]] bool is_foreign() const noexcept { return *word_ != value_; }

 private:
  const volatile std::uint64_t* word_ = nullptr;
  std::uint64_t value_ = 0;
};

}  // namespace feedlane::os
