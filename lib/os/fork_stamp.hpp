// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/error.hpp"

namespace feedlane::os {

// Tells a forked child from the process that made a handle, by one load: the stamp lies on a page that the kernel wipes
// in the child (MADV_WIPEONFORK). No atfork handler, no getpid on the hot path.
class ForkStamp {
 public:
  // Fails with E_OS where there is no such page.
  Status take(Error& error);
  // Held over a fork of our own, so that the child doesn't find it locked by a thread that it doesn't have.
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
