// SPDX-License-Identifier: Apache-2.0
// Builds with AddressSanitizer know of every byte of this process whether it may be touched, for shared memory too: payload
// is forbidden but for what a task or a batch has of it at the moment, so that a data set that writes beyond its tensor,
// or a trainer that reads a batch it has released, is reported at the instruction that does it. Other builds: nothing.
//
// It is each process's own affair: nobody's view of the memory changes for others. Threads that work on one mapping share
// it: a slot's is changed by whoever has the slot.
#pragma once

#include <algorithm>
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define FEEDLANE_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FEEDLANE_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef FEEDLANE_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace feedlane::shm {

// Slots are generous with address space, which costs an eighth of itself here: beyond this nothing is guarded.
constexpr std::size_t most_forbidden = std::size_t{16} << 20;

inline void forbid([[maybe_unused]] const void* begin, [[maybe_unused]] std::size_t bytes) {
#ifdef FEEDLANE_ADDRESS_SANITIZER
  __asan_poison_memory_region(begin, std::min(bytes, most_forbidden));
#endif
}

inline void permit([[maybe_unused]] const void* begin, [[maybe_unused]] std::size_t bytes) {
#ifdef FEEDLANE_ADDRESS_SANITIZER
  __asan_unpoison_memory_region(begin, bytes);
#endif
}

}  // namespace feedlane::shm
