// SPDX-License-Identifier: Apache-2.0
// Detects that a handle is used in a forked child.
#pragma once

#include <cstdint>

#include "base/error.hpp"

namespace feedlane::os {

// Distinguishes a forked child from the process that created a handle, by one load: the stamp is on a page that the kernel
// zeroes in the child (MADV_WIPEONFORK). No atfork handler, no getpid on the hot path.
class ForkStamp {
 public:
  // E_OS if the kernel offers no such page.
  Status take(Error& error);
  // Held over a fork by this library, so that in the child the mutex isn't locked by a thread that doesn't exist there.
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
