// SPDX-License-Identifier: Apache-2.0
#include "worker/scratch.hpp"

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

}  // namespace

#ifdef FEEDLANE_HAVE_MIMALLOC

void* Scratch::allocate(std::size_t bytes, std::size_t alignment) {
  if (!std::has_single_bit(alignment) || alignment > largest_alignment) return nullptr;
  if (heap_ == nullptr) heap_ = mi_heap_new();  // bound to this thread
  if (heap_ == nullptr) return nullptr;
  return mi_heap_malloc_aligned(static_cast<mi_heap_t*>(heap_), bytes == 0 ? 1 : bytes, alignment);
}

void Scratch::clear() {
  if (heap_ != nullptr) mi_heap_destroy(static_cast<mi_heap_t*>(heap_));
  heap_ = nullptr;
}

#else

namespace {

struct Block {
  Block* next;
};

}  // namespace

void* Scratch::allocate(std::size_t bytes, std::size_t alignment) {
  if (!std::has_single_bit(alignment) || alignment > largest_alignment || bytes > SIZE_MAX / 2) return nullptr;
  const std::size_t head = alignment > sizeof(Block) ? alignment : sizeof(Block);
  void* memory = nullptr;
  if (::posix_memalign(&memory, head, head + bytes) != 0) return nullptr;
  heap_ = new (memory) Block{static_cast<Block*>(heap_)};
  return static_cast<std::byte*>(memory) + head;
}

void Scratch::clear() {
  while (heap_ != nullptr) {
    Block* next = static_cast<Block*>(heap_)->next;
    std::free(heap_);
    heap_ = next;
  }
}

#endif

}  // namespace feedlane::worker
