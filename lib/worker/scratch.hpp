// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace feedlane::worker {

// Memory that lasts as long as a task: a heap of mimalloc's, dropped as a whole; without mimalloc, a list of blocks.
// Belongs to the thread that allocates first after a clear.
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
  void* heap_ = nullptr;
};

}  // namespace feedlane::worker
