// SPDX-License-Identifier: Apache-2.0
// Scratch memory of a task.
#pragma once

#include <cstddef>

namespace feedlane::dataset {

// A list of blocks that are freed together at the end of a task. Not a heap of mimalloc's: such a heap is bound to a thread,
// and calls for one worker may come from several threads one after another (goroutines, Julia's tasks).
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { clear(); }

  // `alignment` is a power of two up to 1 MiB. nullptr: out of memory, or another alignment.
  void* allocate(std::size_t bytes, std::size_t alignment);
  void clear();

 private:
  struct Block {  // directly before the memory that the caller got
    Block* next;
    void* whole;  // start of the allocation
  };
  Block* newest_ = nullptr;
};

}  // namespace feedlane::dataset
