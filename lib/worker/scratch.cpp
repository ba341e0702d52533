// SPDX-License-Identifier: Apache-2.0
#include "worker/scratch.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#ifdef FEEDLANE_HAVE_MIMALLOC
#include <mimalloc.h>
#endif

namespace feedlane::worker {
namespace {

constexpr std::size_t largest_alignment = std::size_t{1} << 20;

// Aligned like any allocation, for 16 bytes: more is made of it here. mimalloc's own aligned allocation isn't for every size
// and alignment what was asked for (2.0.9, which Debian 12 has: 256 bytes at 256).
void* allocate_block(std::size_t bytes) {
#ifdef FEEDLANE_HAVE_MIMALLOC
  return mi_malloc(bytes);
#else
  return std::malloc(bytes);
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
  const std::size_t step = std::max(alignment, alignof(Block));
  std::size_t room = bytes + step - 1;
  void* const whole = allocate_block(sizeof(Block) + room);
  if (whole == nullptr) return nullptr;
  void* memory = static_cast<std::byte*>(whole) + sizeof(Block);
  memory = std::align(step, bytes, memory, room);  // there is room: never nullptr
  newest_ = new (static_cast<std::byte*>(memory) - sizeof(Block)) Block{newest_, whole};
  return memory;
}

void Scratch::clear() {
  while (newest_ != nullptr) {
    Block* const next = newest_->next;
    free_block(newest_->whole);
    newest_ = next;
  }
}

}  // namespace feedlane::worker
