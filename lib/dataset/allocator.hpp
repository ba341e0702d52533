// SPDX-License-Identifier: Apache-2.0
// The allocator behind scratch memory.
#pragma once

#include <cstddef>

namespace feedlane::dataset {

// mimalloc if it is installed, else malloc; see the build option `mimalloc`.
struct Allocator {
  void* (*allocate)(std::size_t bytes);  // nullptr: no memory
  void (*free)(void* memory);            // from any thread
  const char* name;
};

// Chosen once, by the first call. It may load a library.
const Allocator& allocator();

}  // namespace feedlane::dataset
