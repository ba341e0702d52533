// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "shm/layout.hpp"

namespace feedlane::shm {

// A private copy of something that another process may be writing at this moment: each word is read once, as a relaxed
// atomic, so that what is validated is what is used. Order comes from the acquire that led here.
template <class T>
T read_once(const void* shared) noexcept {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(std::uint64_t) == 0);
  T copy;
  std::uint64_t words[sizeof(T) / sizeof(std::uint64_t)];
  const auto* source = static_cast<const std::uint64_t*>(shared);
  for (std::size_t i = 0; i < sizeof(T) / sizeof(std::uint64_t); i++)
    words[i] = __atomic_load_n(source + i, __ATOMIC_RELAXED);
  __builtin_memcpy(&copy, words, sizeof copy);
  return copy;
}

// A counter with one writer needs no read-modify-write. Relaxed: a number to look at.
inline void add(Word64& counter, std::uint64_t amount = 1) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

}  // namespace feedlane::shm
