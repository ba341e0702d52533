// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace feedlane::dataset {

// Where scratch memory comes from: mimalloc where there is one, see the option `mimalloc`.
struct Allocator {
  void* (*allocate)(std::size_t bytes);  // nullptr: no memory
  void (*free)(void* memory);            // from any thread
  const char* name;
};

// Chosen once, by the first call. It may load a library.
const Allocator& allocator();

}  // namespace feedlane::dataset
