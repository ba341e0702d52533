// SPDX-License-Identifier: Apache-2.0
// Asking for lines of memory before they are used, while there is other work to do. Nothing depends on it but time.
#pragma once

#include <cstddef>

namespace feedlane {

// To be written soon: others may have it.
inline void prefetch_for_write(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));  // __builtin_prefetch would only read it
#else
  __builtin_prefetch(line, 1);
#endif
}
inline void prefetch_for_write(const void* memory, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) prefetch_for_write(static_cast<const std::byte*>(memory) + i);
}

}  // namespace feedlane
