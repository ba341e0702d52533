// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace feedlane::dataset {

// Memory that lasts as long as a task: a list of blocks, from mimalloc where there is one. Not a heap of mimalloc's: those
// are bound to a thread, and a worker's calls may come from one thread after another (goroutines, Julia's tasks).
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { clear(); }

  // `alignment` a power of two up to 1 MiB. nullptr: no memory, or no such alignment.
  void* allocate(std::size_t bytes, std::size_t alignment);
  void clear();

 private:
  struct Block {  // right before the memory that was asked for
    Block* next;
    void* whole;  // as it was allocated
  };
  Block* newest_ = nullptr;
};

}  // namespace feedlane::dataset
