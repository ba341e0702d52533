// SPDX-License-Identifier: Apache-2.0
// Memory that lasts for one task.
#include "dataset/scratch.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

using feedlane::dataset::Scratch;

namespace {

bool is_aligned(const void* memory, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(memory) % alignment == 0;
}

std::uint64_t address_space_pages() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

}  // namespace

TEST_CASE("memory has the requested alignment for every power of two up to 1 MiB") {
  Scratch scratch;
  for (std::size_t alignment = 1; alignment <= std::size_t{1} << 20; alignment *= 2)
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{24}, std::size_t{5000}}) {
      CAPTURE(alignment);
      CAPTURE(bytes);
      void* memory = scratch.allocate(bytes, alignment);
      REQUIRE(memory != nullptr);
      CHECK(is_aligned(memory, alignment));
      std::memset(memory, 1, bytes);
    }
}

TEST_CASE("memory has the requested alignment for every size up to five times the alignment") {
  // Sizes from nothing to some times the alignment, and those around each of its multiples.
  for (std::size_t alignment = 1; alignment <= 8192; alignment *= 2)
    for (std::size_t around = 0; around <= 5 * alignment; around += std::max<std::size_t>(alignment / 4, 1))
      for (const std::size_t bytes : {around - (around != 0 ? 1 : 0), around, around + 1}) {
        Scratch scratch;
        int misaligned = 0;
        for (int i = 0; i < 20; i++) misaligned += is_aligned(scratch.allocate(bytes, alignment), alignment) ? 0 : 1;
        REQUIRE_MESSAGE(misaligned == 0, bytes << " bytes at " << alignment);
      }
}

TEST_CASE("allocate() returns NULL for an invalid alignment") {
  Scratch scratch;
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{48}, (std::size_t{1} << 20) + 1,
                                      std::size_t{1} << 21, std::size_t{1} << 63, SIZE_MAX})
    CHECK(scratch.allocate(16, alignment) == nullptr);
}

TEST_CASE("each request for 0 bytes returns a different address") {
  Scratch scratch;
  void* a = scratch.allocate(0, 16);
  void* b = scratch.allocate(0, 16);
  REQUIRE(a != nullptr);
  REQUIRE(b != nullptr);
  CHECK(a != b);
}

TEST_CASE("blocks of a task don't overlap and keep what was written to them") {
  Scratch scratch;
  std::vector<unsigned char*> blocks;
  for (std::size_t i = 0; i < 300; i++) {
    auto* block = static_cast<unsigned char*>(scratch.allocate(i + 1, 16));
    REQUIRE(block != nullptr);
    std::memset(block, static_cast<int>(i % 251), i + 1);
    blocks.push_back(block);
  }
  bool kept = true;
  for (std::size_t i = 0; i < blocks.size(); i++)
    for (std::size_t j = 0; j <= i; j++) kept = kept && blocks[i][j] == i % 251;
  CHECK(kept);
}

TEST_CASE("a block of 64 MiB is allocated, and allocate() returns NULL for an impossible size") {
  Scratch scratch;
  constexpr std::size_t large = std::size_t{64} << 20;
  auto* memory = static_cast<unsigned char*>(scratch.allocate(large, 4096));
  REQUIRE(memory != nullptr);
  memory[0] = memory[large - 1] = 7;
  CHECK(scratch.allocate(SIZE_MAX, 16) == nullptr);
  CHECK(scratch.allocate(SIZE_MAX - 4096, 4096) == nullptr);
  CHECK(memory[large - 1] == 7);
}

TEST_CASE("clear() frees the task's memory, and a hundred tasks need little more than one task") {
  Scratch scratch;
  scratch.clear();  // of nothing
  const auto task = [&](int number) {
    for (int i = 0; i < 4; i++) {
      void* memory = scratch.allocate(std::size_t{16} << 20, 64);
      REQUIRE(memory != nullptr);
      std::memset(memory, number, 4096);
    }
    scratch.clear();
    scratch.clear();
  };
  task(0);
  const std::uint64_t before = address_space_pages();
  for (int number = 1; number <= 100; number++) task(number);  // 6.4 GB, if none of it came back
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  CHECK(address_space_pages() < before + (std::uint64_t{2} << 30) / page);
  CHECK(scratch.allocate(16, 16) != nullptr);
}

TEST_CASE("one thread may allocate memory and another thread may clear it") {
  Scratch scratch;
  CHECK(scratch.allocate(100, 16) != nullptr);
  bool had = false;
  std::thread([&] {
    scratch.clear();
    had = scratch.allocate(100, 16) != nullptr;
  }).join();
  CHECK(had);
  scratch.clear();
  CHECK(scratch.allocate(100, 16) != nullptr);
}
