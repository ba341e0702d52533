// SPDX-License-Identifier: Apache-2.0
// Extents: what is taken never overlaps, and what is given back is joined.
#include "arena/extents.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>

using namespace feedlane::arena;

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

// The number of bytes of each kind, counted one extent at a time from the lists.
std::uint64_t sum(Extents& e, ExtentKind kind) {
  std::vector<std::uint32_t> taken;
  std::uint64_t bytes = 0;
  if (kind == ExtentKind::hole) return 0;
  for (std::uint32_t x; (x = e.find_large(0, kind)) != Extents::none;) {
    const std::uint64_t size = e.at(x).bytes;
    taken.push_back(e.take(0, size));
    bytes += size;
  }
  for (const std::uint32_t x : taken) e.give_back(x);
  return bytes;
}

}  // namespace

TEST_CASE("a segment is one hole, of which parts are filled, taken, given back and emptied") {
  Extents e(2, 64);
  e.open(0, mib);
  CHECK(e.take(0, 256) == Extents::none);
  e.fill(e.find(0, ExtentKind::hole, 8192), 8192);
  const std::uint32_t a = e.take(0, 256);
  const std::uint32_t b = e.take(0, 4096);
  REQUIRE(a != Extents::none);
  REQUIRE(b != Extents::none);
  CHECK(e.at(a).offset == 0);
  CHECK(e.used_bytes(0) == 4352);
  CHECK(e.take(0, 4096) == Extents::none);
  e.give_back(a);
  e.give_back(b);
  CHECK(e.used_bytes(0) == 0);
  const std::uint32_t whole = e.find(0, ExtentKind::free, 8192);
  REQUIRE(whole != Extents::none);
  CHECK(e.at(whole).bytes == 8192);
  e.empty(whole);
  CHECK(e.find_large(0, ExtentKind::free) == Extents::none);
  CHECK(e.at(e.find_large(0, ExtentKind::hole)).bytes == mib);
  CHECK(e.count() == 1);
}

TEST_CASE("only whole pages of a free extent become a hole") {
  Extents e(1, 64);
  e.open(0, mib);
  e.fill(e.find(0, ExtentKind::hole, 16384), 16384);
  const std::uint32_t front = e.take(0, 256);
  const std::uint32_t rest = e.find(0, ExtentKind::free, 8192);
  const Extents::Pages pages = e.pages_of(rest);
  CHECK(pages.offset == 4096);
  CHECK(pages.bytes == 12288);
  e.empty(rest);
  CHECK(e.at(e.find_large(0, ExtentKind::free)).bytes == 4096 - 256);
  e.give_back(front);
  CHECK(e.at(e.find_large(0, ExtentKind::free)).bytes == 4096);
}

TEST_CASE("a part is cut out of an extent in use") {
  Extents e(1, 64);
  e.open(0, mib);
  e.fill(e.find(0, ExtentKind::hole, 8192), 8192);
  const std::uint32_t grant = e.take(0, 4096);
  const std::uint32_t part = e.cut(grant, 1024, 512);
  CHECK(e.at(part).offset == 1024);
  CHECK(e.at(part).bytes == 512);
  CHECK(e.at(grant).bytes == 1024);
  CHECK(e.at(e.at(part).after).offset == 1536);
  CHECK(e.used_bytes(0) == 4096);
  e.give_back(part);
  CHECK(e.take(0, 512) == part);
}

TEST_CASE("random use: extents in use never overlap, and nothing is lost") {
  std::mt19937_64 random(7);
  Extents e(1, 4096);
  e.open(0, 64 * mib);
  std::map<std::uint64_t, std::uint32_t> used;  // by offset
  std::uint64_t filled = 0;
  for (int step = 0; step < 20'000; step++) {
    const std::uint64_t bytes = 256 * (1 + random() % (random() % 8 == 0 ? 400 : 20));
    if (random() % 2 == 0 && e.has_room(4)) {
      std::uint32_t x = e.take(0, bytes);
      if (x == Extents::none && filled < 8 * mib) {
        const std::uint64_t pages = (bytes + 4095) & ~std::uint64_t{4095};
        e.fill(e.find(0, ExtentKind::hole, pages), pages);
        filled += pages;
        x = e.take(0, bytes);
        REQUIRE(x != Extents::none);
      }
      if (x == Extents::none) continue;
      const std::uint64_t offset = e.at(x).offset;
      REQUIRE(e.at(x).bytes == bytes);
      const auto next = used.lower_bound(offset);
      if (next != used.end()) REQUIRE(offset + bytes <= next->first);
      if (next != used.begin()) {
        const std::uint32_t before = std::prev(next)->second;
        REQUIRE(e.at(before).offset + e.at(before).bytes <= offset);
      }
      used[offset] = x;
    } else if (!used.empty()) {
      auto it = used.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(random() % used.size()));
      e.give_back(it->second);
      used.erase(it);
    }
    if (step % 1000 == 999) {
      const std::uint32_t large = e.find_large(0, ExtentKind::free);
      if (large != Extents::none && e.pages_of(large).bytes != 0) {
        filled -= e.pages_of(large).bytes;
        e.empty(large);
      }
    }
  }
  std::uint64_t in_use = 0;
  for (const auto& [offset, x] : used) in_use += e.at(x).bytes;
  CHECK(e.used_bytes(0) == in_use);
  CHECK(sum(e, ExtentKind::free) == filled - in_use);
  for (const auto& [offset, x] : used) e.give_back(x);
  CHECK(e.used_bytes(0) == 0);
  CHECK(sum(e, ExtentKind::free) == filled);
}
