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
#include <cstdint>

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
constexpr std::uint64_t guarded_bytes = std::uint64_t{16} << 20;

// A part of a slot's payload, which begins at `payload`.
inline void forbid([[maybe_unused]] const std::byte* payload, [[maybe_unused]] std::uint64_t offset,
                   [[maybe_unused]] std::uint64_t bytes) {
#ifdef FEEDLANE_ADDRESS_SANITIZER
  if (offset < guarded_bytes) __asan_poison_memory_region(payload + offset, std::min(bytes, guarded_bytes - offset));
#endif
}

inline void permit([[maybe_unused]] const std::byte* payload, [[maybe_unused]] std::uint64_t offset,
                   [[maybe_unused]] std::uint64_t bytes) {
#ifdef FEEDLANE_ADDRESS_SANITIZER
  if (offset < guarded_bytes) __asan_unpoison_memory_region(payload + offset, std::min(bytes, guarded_bytes - offset));
#endif
}

}  // namespace feedlane::shm
