// SPDX-License-Identifier: Apache-2.0
// Memory that a test and the children that it forks use together.
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <new>

namespace feedlane::test {

// A value-initialised T in it.
template <class T>
class OverFork {
 public:
  OverFork() {
    void* const memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    object_ = new (memory) T();
  }
  OverFork(const OverFork&) = delete;
  OverFork& operator=(const OverFork&) = delete;
  ~OverFork() { (void)::munmap(object_, sizeof(T)); }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }

 private:
  T* object_;
};

}  // namespace feedlane::test
