// SPDX-License-Identifier: Apache-2.0
// The entries of an arena, read from its control segment.
#pragma once

#include <cstdint>

#include "feedlane.h"
#include "shm/arena_layout.hpp"

namespace feedlane::test::arenas {

// Calls `f(entry, state)` for each entry that is not free.
template <class F>
void for_each_entry(const std::byte* control, const shm::ArenaPlan& plan, F&& f) {
  const auto* all = reinterpret_cast<const shm::ArenaEntry*>(control + plan.entries);
  for (std::uint32_t i = 0; i < plan.geometry.entries; i++)
    if (const auto state = static_cast<shm::ArenaEntryState>(all[i].state.load(std::memory_order_relaxed) & 0xff);
        state != shm::ArenaEntryState::free)
      f(all[i], state);
}

// The owner drops all keys of members that have at least this number. False: a drop failed.
inline bool drop_entries(feedlane_arena* owner, const std::byte* control, const shm::ArenaPlan& plan,
                         std::uint64_t from_maker = 0) {
  bool is_done = true;
  for_each_entry(control, plan, [&](const shm::ArenaEntry& e, shm::ArenaEntryState state) {
    const std::uint64_t bytes = e.key_bytes.load(std::memory_order_relaxed);
    if (state != shm::ArenaEntryState::live || bytes == 0 || e.maker.load(std::memory_order_relaxed) < from_maker)
      return;
    std::uint64_t key[shm::arena_key_words];
    for (std::uint32_t w = 0; w < shm::arena_key_words; w++) key[w] = e.key[w].load(std::memory_order_relaxed);
    is_done = feedlane_arena_drop(owner, key, bytes, 0, nullptr) == FEEDLANE_OK && is_done;
  });
  return is_done;
}

}  // namespace feedlane::test::arenas
