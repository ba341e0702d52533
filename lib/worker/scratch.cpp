// SPDX-License-Identifier: Apache-2.0
#include "worker/scratch.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <new>

#ifdef FEEDLANE_HAVE_MIMALLOC
#include <mimalloc.h>
#endif

namespace feedlane::worker {
namespace {

constexpr std::size_t largest_alignment = std::size_t{1} << 20;

void* allocate_block(std::size_t bytes, std::size_t alignment) {
#ifdef FEEDLANE_HAVE_MIMALLOC
  return mi_malloc_aligned(bytes, alignment);
#else
  void* memory = nullptr;
  return ::posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
#endif
}

void free_block(void* memory) {
#ifdef FEEDLANE_HAVE_MIMALLOC
  mi_free(memory);  // from any thread
#else
  std::free(memory);
#endif
}

}  // namespace

void* Scratch::allocate(std::size_t bytes, std::size_t alignment) {
  if (!std::has_single_bit(alignment) || alignment > largest_alignment || bytes > SIZE_MAX / 2) return nullptr;
  const std::size_t head = std::max(alignment, sizeof(Block));
  void* memory = allocate_block(head + bytes, head);
  if (memory == nullptr) return nullptr;
  newest_ = new (memory) Block{newest_};
  return static_cast<std::byte*>(memory) + head;
}

void Scratch::clear() {
  while (newest_ != nullptr) {
    Block* const next = newest_->next;
    free_block(newest_);
    newest_ = next;
  }
}

}  // namespace feedlane::worker
