// SPDX-License-Identifier: Apache-2.0
// Scratch memory: a linked list of blocks.
#include "dataset/scratch.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <new>

#include "dataset/allocator.hpp"

namespace feedlane::dataset {
namespace {

constexpr std::size_t largest_alignment = std::size_t{1} << 20;

}  // namespace

void* Scratch::allocate(std::size_t bytes, std::size_t alignment) {
  if (!std::has_single_bit(alignment) || alignment > largest_alignment || bytes > SIZE_MAX / 2) return nullptr;
  const std::size_t step = std::max(alignment, alignof(Block));
  std::size_t room = bytes + step - 1;
  void* const whole = allocator().allocate(sizeof(Block) + room);
  if (whole == nullptr) return nullptr;
  void* memory = static_cast<std::byte*>(whole) + sizeof(Block);
  memory = std::align(step, bytes, memory, room);  // never nullptr, because there is room
  newest_ = new (static_cast<std::byte*>(memory) - sizeof(Block)) Block{newest_, whole};
  return memory;
}

void Scratch::clear() {
  while (newest_ != nullptr) {
    Block* const next = newest_->next;
    allocator().free(newest_->whole);
    newest_ = next;
  }
}

}  // namespace feedlane::dataset
