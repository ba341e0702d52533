// SPDX-License-Identifier: Apache-2.0
// Poisons slot payload for AddressSanitizer. Payload is poisoned except while a task or a batch uses it. So a data set
// that writes beyond its tensor, or a trainer that reads a released batch, is reported at the faulty instruction. In
// other builds these functions do nothing.
//
// Poisoning is private to a process. Threads that use one mapping share it, so only the current owner of a slot changes
// the slot's poisoning.
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

// Only this much of a slot is poisoned: a slot may have much address space, and poisoning takes an eighth of it in
// memory.
constexpr std::uint64_t guarded_bytes = std::uint64_t{16} << 20;

// `offset` and `bytes` describe a part of the slot's payload, which begins at `payload`.
inline void poison([[maybe_unused]] const std::byte* payload, [[maybe_unused]] std::uint64_t offset,
                   [[maybe_unused]] std::uint64_t bytes) {
#ifdef FEEDLANE_ADDRESS_SANITIZER
  if (offset < guarded_bytes) __asan_poison_memory_region(payload + offset, std::min(bytes, guarded_bytes - offset));
#endif
}

inline void unpoison([[maybe_unused]] const std::byte* payload, [[maybe_unused]] std::uint64_t offset,
                     [[maybe_unused]] std::uint64_t bytes) {
#ifdef FEEDLANE_ADDRESS_SANITIZER
  if (offset < guarded_bytes) __asan_unpoison_memory_region(payload + offset, std::min(bytes, guarded_bytes - offset));
#endif
}

}  // namespace feedlane::shm
