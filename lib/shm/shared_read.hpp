// SPDX-License-Identifier: Apache-2.0
// Reads of memory that another process or thread may write, writes of memory that it may read, and counters with one
// writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "shm/layout.hpp"

namespace feedlane::shm {

// A private copy of an object that another process may be writing. Reads each word once, as a relaxed atomic, so the
// validated value is the value that is used. The acquire load that led here provides the order.
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

// Copies a list of words in the same way.
inline void copy_once(const std::int64_t* shared, std::size_t count, std::vector<std::int64_t>& out) {
  out.resize(count);
  for (std::size_t i = 0; i < count; i++) out[i] = __atomic_load_n(shared + i, __ATOMIC_RELAXED);
}

// Writes a list that copy_once may be reading: word by word, relaxed. The reader must find out by other means which
// words it read.
inline void write_list(std::int64_t* shared, const std::int64_t* from, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; i++) __atomic_store_n(shared + i, from[i], __ATOMIC_RELAXED);
}

// A counter with one writer needs no read-modify-write. Relaxed: it is only a statistic.
inline void add(Word64& counter, std::uint64_t amount = 1) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

}  // namespace feedlane::shm
