// SPDX-License-Identifier: Apache-2.0
// Maps payload segments for reading.
#include "arena/views.hpp"

#include <sys/mman.h>

#include "ring/fence.hpp"

namespace feedlane::arena {

std::uint32_t Views::keep(std::uint32_t segment, std::uint32_t generation) {
  if (segment >= segments_ || generation == 0) return none;
  for (std::uint32_t v = segment * per_segment; v < (segment + 1) * per_segment; v++) {
    View& view = all_[v];
    if (view.generation.load(std::memory_order_relaxed) != generation) continue;  // only a hint
    // Relaxed: the fence orders it before the load. Pairs with the fence in `map`: at least one side sees the other's
    // store. Acquire: the mapping was made before its generation was stored.
    view.users.fetch_add(1, std::memory_order_relaxed);
    ring::doorbell_fence();
    if (view.generation.load(std::memory_order_acquire) == generation) return v;
    view.users.fetch_sub(1, std::memory_order_relaxed);  // it used nothing
  }
  return none;
}

Status Views::map(std::uint32_t segment, std::uint32_t generation, int fd, Error& error) {
  for (std::uint32_t v = segment * per_segment; v < (segment + 1) * per_segment; v++) {
    View& view = all_[v];
    const std::uint32_t before = view.generation.load(std::memory_order_relaxed);  // this thread alone writes it
    view.generation.store(0, std::memory_order_relaxed);                           // the fence orders it
    ring::doorbell_fence();                                                        // pairs with the one in `keep`
    if (view.users.load(std::memory_order_acquire) != 0) {                         // pairs with `let_go`
      view.generation.store(before, std::memory_order_release);
      continue;
    }
    const Status s = view.mapping.map(fd, bytes_, shm::Access::read_only, shm::Children::none, error);
    if (s != FEEDLANE_OK) return s;
    view.mapping.advise(MADV_DONTDUMP);
    view.generation.store(generation, std::memory_order_release);  // pairs with the acquire in `keep`
    return s;
  }
  return error.refuse(FEEDLANE_E_LIMIT, "batch", per_segment, 0,
                      "batches of {} members that have ended are held, in whose place a member has put an entry: "
                      "release them",
                      per_segment);
}

}  // namespace feedlane::arena
