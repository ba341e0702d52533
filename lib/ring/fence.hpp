// SPDX-License-Identifier: Apache-2.0
// The full fence of the doorbell protocol.
#pragma once

#include <atomic>

#if defined(__SANITIZE_THREAD__)
#define FEEDLANE_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FEEDLANE_THREAD_SANITIZER 1
#endif
#endif

namespace feedlane::ring {

// The fence between publishing and reading the peer's flag, and between setting the own flag and sweeping. Each side's
// fence pairs with the other's: at least one side sees what the other stored before its own fence.
inline void doorbell_fence() noexcept {
#ifdef FEEDLANE_THREAD_SANITIZER
  // ThreadSanitizer doesn't know fences; it does know a sequentially consistent read-modify-write.
  static std::atomic<unsigned> word{0};
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace feedlane::ring
