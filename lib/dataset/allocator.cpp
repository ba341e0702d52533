// SPDX-License-Identifier: Apache-2.0
// Loads mimalloc at run time, or falls back to malloc.
#include "dataset/allocator.hpp"

#include <cstdlib>
#include <initializer_list>

#if defined(FEEDLANE_MIMALLOC_STATIC)
#include <mimalloc.h>
#elif defined(FEEDLANE_MIMALLOC_LOAD)
#include <dlfcn.h>
#endif

namespace feedlane::dataset {
namespace {

#if defined(FEEDLANE_MIMALLOC_STATIC)

Allocator choose() {
  mi_free(mi_malloc(1));  // the first allocation looks for memory nodes in /sys
  return {mi_malloc, mi_free, "mimalloc"};
}

#elif defined(FEEDLANE_MIMALLOC_LOAD)

// libmimalloc.so defines malloc and free, which must not replace the host program's. So it is not linked, but loaded
// with RTLD_LOCAL. It is never unloaded, because threads that have used it run its code when they end.
Allocator choose() {
  for (const char* name : {"libmimalloc.so.3", "libmimalloc.so.2"}) {
    void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) continue;
    auto* const allocate = reinterpret_cast<void* (*)(std::size_t)>(::dlsym(library, "mi_malloc"));
    auto* const free = reinterpret_cast<void (*)(void*)>(::dlsym(library, "mi_free"));
    if (allocate == nullptr || free == nullptr) continue;
    free(allocate(1));  // the first allocation looks for memory nodes in /sys
    return {allocate, free, "mimalloc"};
  }
  return {std::malloc, std::free, "the C library"};
}

#else

Allocator choose() { return {std::malloc, std::free, "the C library"}; }

#endif

}  // namespace

const Allocator& allocator() {
  static const Allocator chosen = choose();
  return chosen;
}

}  // namespace feedlane::dataset
