// SPDX-License-Identifier: Apache-2.0
// Reading memory that another process may be writing.
#include "shm/shared_read.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "shm/layout.hpp"

namespace shm = feedlane::shm;

TEST_CASE("a copy has every byte of the shared object and is private") {
  alignas(8) unsigned char shared[sizeof(shm::TensorRecord)];
  for (std::size_t i = 0; i < sizeof shared; i++) shared[i] = static_cast<unsigned char>(i * 7 + 1);
  const auto copy = shm::read_once<shm::TensorRecord>(shared);
  CHECK(std::memcmp(&copy, shared, sizeof shared) == 0);
  std::memset(shared, 0, sizeof shared);
  CHECK(copy.code != 0);
}

TEST_CASE("read_once reads no byte beyond the struct") {
  alignas(8) std::uint64_t words[3] = {1, 2, 3};
  struct Two {
    std::uint64_t a, b;
  };
  const auto two = shm::read_once<Two>(words + 1);
  CHECK(two.a == 2);
  CHECK(two.b == 3);
}

TEST_CASE("a word that is being written is read whole, with either its old or its new value") {
  struct Words {
    std::uint64_t word[8];
  };
  alignas(64) Words shared{};
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop.load(std::memory_order_relaxed); i++)
      for (std::uint64_t& word : shared.word) __atomic_store_n(&word, (i << 32) | (i & 0xffffffff), __ATOMIC_RELAXED);
  });
  while (__atomic_load_n(&shared.word[7], __ATOMIC_RELAXED) == 0) std::this_thread::yield();
  bool whole = true;
  std::uint64_t last = 0;
  bool forward = true;
  for (int i = 0; i < 1'000'000; i++) {
    const auto copy = shm::read_once<Words>(&shared);
    for (const std::uint64_t word : copy.word) whole = whole && word >> 32 == (word & 0xffffffff);
    forward = forward && copy.word[0] >= last;
    last = copy.word[0];
  }
  stop.store(true, std::memory_order_relaxed);
  writer.join();
  CHECK(whole);
  CHECK(forward);
}
