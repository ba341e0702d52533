// SPDX-License-Identifier: Apache-2.0
// Scratch memory of a task.
#pragma once

#include <cstddef>

namespace feedlane::dataset {

// A list of blocks that are freed together at the end of a task. Not a mimalloc heap, because such a heap is bound to a
// thread, but calls for one worker may come from one thread after another (goroutines, Julia's tasks).
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { clear(); }

  // `alignment` is a power of two up to 1 MiB. nullptr: out of memory, or an invalid alignment.
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
