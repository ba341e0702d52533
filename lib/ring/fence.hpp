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

// A publisher executes it between publishing and reading the peer's flag, a sleeper between setting its flag and
// sweeping. The two fences pair: at least one side sees the stores that the other side made before its fence.
inline void doorbell_fence() noexcept {
#ifdef FEEDLANE_THREAD_SANITIZER
  // ThreadSanitizer doesn't support fences, but it supports sequentially consistent read-modify-writes.
  static std::atomic<unsigned> word{0};
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace feedlane::ring
