// SPDX-License-Identifier: Apache-2.0
// Replaces operator new: counts allocations, and fails the one that a test asks to fail.
#include "allocation.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace feedlane::test {
namespace {

pid_t armed_process = -1;  // not its forked children
long until_failure = -1;
bool failed = false;
std::atomic<std::int64_t> live{0};
std::atomic<std::int64_t> all{0};

void* allocate(std::size_t bytes) {
  if (until_failure >= 0 && armed_process == ::getpid() && until_failure-- == 0) {
    failed = true;
    throw std::bad_alloc();
  }
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  live.fetch_add(1, std::memory_order_relaxed);
  all.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

void release(void* memory) {
  if (memory == nullptr) return;
  live.fetch_sub(1, std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

void fail_allocation(long nth) {
  until_failure = nth;
  failed = false;
}
bool has_failed() { return failed; }
std::int64_t all_allocations() { return all.load(std::memory_order_relaxed); }
std::int64_t live_allocations() { return live.load(std::memory_order_relaxed); }
void arm(bool on) { armed_process = on ? ::getpid() : -1; }

}  // namespace feedlane::test

[[gnu::noinline]] void* operator new(std::size_t bytes) { return feedlane::test::allocate(bytes); }
// With AddressSanitizer this one would be the sanitizer's own.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return feedlane::test::allocate(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { feedlane::test::release(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { feedlane::test::release(memory); }
