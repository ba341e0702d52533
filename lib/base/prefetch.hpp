// SPDX-License-Identifier: Apache-2.0
// Prefetching of cache lines. It affects only speed.
#pragma once

#include <cstddef>

namespace feedlane {

// For a line that this thread will write soon and that may be in another processor's cache.
inline void prefetch_for_write(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));  // __builtin_prefetch prefetches for reading
#else
  __builtin_prefetch(line, 1);
#endif
}
inline void prefetch_for_write(const void* memory, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) prefetch_for_write(static_cast<const std::byte*>(memory) + i);
}

}  // namespace feedlane
