// SPDX-License-Identifier: Apache-2.0
// The arena's memory: what is in use never overlaps, keeps its contents, and is within the budget; segments end when they
// are neither a member's nor in use.
#include "arena/memory.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <array>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "shm/mapping.hpp"

using namespace feedlane;
using namespace feedlane::arena;

namespace {

constexpr std::uint64_t budget = 1 << 20;
constexpr std::uint32_t segments = 8;

shm::ArenaPlan plan() {
  shm::ArenaPlan p;
  Error error;
  REQUIRE(shm::make_arena_plan({budget, 64, 64, 2, segments, 4, 0}, p, error) == FEEDLANE_OK);
  return p;
}

// Memory that the system has given a segment.
std::uint64_t filled(const Memory& m, std::uint32_t segment) {
  struct stat s {};
  REQUIRE(::fstat(m.writable(segment), &s) == 0);
  return static_cast<std::uint64_t>(s.st_blocks) * 512;
}

// An extent in use begins and ends with its mark.
std::pair<std::uint64_t*, std::uint64_t*> ends_of(const shm::Mapping& segment, const Extents::Extent& e) {
  const auto at = [&](std::uint64_t offset) { return reinterpret_cast<std::uint64_t*>(segment.data() + offset); };
  return {at(e.offset), at(e.offset + e.bytes - sizeof(std::uint64_t))};
}

std::uint32_t open(Memory& m) {
  Error error;
  std::uint32_t segment = Memory::none;
  REQUIRE_MESSAGE(m.open(segment, error) == FEEDLANE_OK, error.text);
  return segment;
}

}  // namespace

TEST_CASE("memory that one segment gives back goes to another, within the budget") {
  Memory m(plan(), {});
  const std::uint32_t a = open(m), b = open(m);
  std::uint32_t first = Memory::none, second = Memory::none;
  REQUIRE(m.take(a, budget / 2, true, first) == FEEDLANE_OK);
  REQUIRE(m.take(a, budget / 2, true, second) == FEEDLANE_OK);
  std::uint32_t other = Memory::none;
  CHECK(m.take(b, 4096, true, other) == FEEDLANE_E_LIMIT);
  CHECK(m.may_get_back(a, budget));
  CHECK_FALSE(m.may_get_back(b, 256));
  m.give_back(first);
  CHECK(m.take(b, budget / 2, false, other) == FEEDLANE_E_LIMIT);
  REQUIRE(m.take(b, budget / 2, true, other) == FEEDLANE_OK);
  CHECK(filled(m, a) == budget / 2);
  CHECK(filled(m, b) == budget / 2);
  CHECK(m.used_bytes() == budget);
}

TEST_CASE("an orphan's segment ends with the last part that is in use, and its number gets another generation") {
  Memory m(plan(), {});
  const std::uint32_t segment = open(m);
  const std::uint32_t generation = m.generation(segment);
  std::uint32_t extent = Memory::none;
  REQUIRE(m.take(segment, 4096, true, extent) == FEEDLANE_OK);
  const std::uint32_t part = m.cut(extent, m.at(extent).offset + 1024, 1024);
  const std::uint32_t rest = m.at(part).after;
  REQUIRE(rest != Memory::none);
  m.orphan(segment);
  m.give_back(extent);
  m.give_back(part);
  CHECK(m.readable(segment, generation) != nullptr);
  CHECK(m.readable(segment, generation + 1) == nullptr);
  CHECK(m.readable(segments, 1) == nullptr);
  m.give_back(rest);
  CHECK(m.readable(segment, generation) == nullptr);
  CHECK(m.used_bytes() == 0);
  CHECK(open(m) == segment);
  CHECK(m.generation(segment) == generation + 1);
}

TEST_CASE("random use: extents in use do not overlap, keep their contents, and stay within the budget") {
  struct Used {
    std::uint32_t extent;
    std::uint64_t value;
  };
  std::mt19937_64 random(13);
  Memory m(plan(), {});
  std::map<std::pair<std::uint32_t, std::uint64_t>, Used> used;  // by segment and offset
  std::vector<std::uint32_t> owned;                              // segments with a member
  std::array<shm::Mapping, segments> mappings;
  std::uint64_t in_use = 0, value = 0;
  const auto is_whole = [&](const Used& u) {
    const auto [first, last] = ends_of(mappings[m.at(u.extent).segment], m.at(u.extent));
    return *first == u.value && *last == u.value;
  };
  const auto enter = [&](std::uint32_t extent) {
    const Extents::Extent& e = m.at(extent);
    const auto next = used.lower_bound({e.segment, e.offset});
    if (next != used.end() && next->first.first == e.segment) REQUIRE(e.offset + e.bytes <= next->first.second);
    if (next != used.begin()) {
      const Extents::Extent& before = m.at(std::prev(next)->second.extent);
      if (before.segment == e.segment) REQUIRE(before.offset + before.bytes <= e.offset);
    }
    const auto [first, last] = ends_of(mappings[e.segment], e);
    *first = *last = ++value;
    used[{e.segment, e.offset}] = {extent, value};
  };
  for (int step = 0; step < 10'000; step++) {
    const std::uint64_t what = random() % 16;
    if (owned.empty() || (what == 0 && owned.size() < 3)) {
      std::uint32_t segment = Memory::none;
      Error error;
      if (m.open(segment, error) != FEEDLANE_OK) {
        REQUIRE(error.code == FEEDLANE_E_LIMIT);
        continue;
      }
      owned.push_back(segment);
      REQUIRE(mappings[segment].map(m.writable(segment), plan().payload_bytes, shm::Access::read_write,
                                    shm::Children::none, error) == FEEDLANE_OK);
    } else if (what == 1) {
      m.orphan(owned.back());
      owned.pop_back();
    } else if (what < 9) {
      const std::uint64_t bytes = 256 * (1 + random() % (random() % 4 == 0 ? 1000 : 20));
      const std::uint32_t segment = owned[random() % owned.size()];
      std::uint32_t extent = Memory::none;
      const Status s = m.take(segment, bytes, random() % 2 == 0, extent);
      if (s == FEEDLANE_E_LIMIT) continue;
      REQUIRE(s == FEEDLANE_OK);
      REQUIRE(m.at(extent).segment == segment);
      REQUIRE(m.at(extent).bytes == bytes);
      in_use += bytes;
      enter(extent);
    } else if (!used.empty()) {
      const auto it = std::next(used.begin(), static_cast<std::ptrdiff_t>(random() % used.size()));
      const Used u = it->second;
      REQUIRE(is_whole(u));
      const Extents::Extent e = m.at(u.extent);
      used.erase(it);
      if (what == 9 && e.bytes >= 1024) {  // the parts stay in use
        const std::uint32_t part = m.cut(u.extent, e.offset + 256, 512);
        if (part != Memory::none) {
          enter(part);
          enter(m.at(part).after);
        }
        enter(u.extent);
      } else {
        in_use -= e.bytes;
        m.give_back(u.extent);
      }
    }
    REQUIRE(m.used_bytes() == in_use);
    if (step % 100 != 0) continue;
    std::uint64_t total = 0;
    for (std::uint32_t s = 0; s < segments; s++)
      if (m.readable(s, m.generation(s)) != nullptr) total += filled(m, s);
    REQUIRE(total >= in_use);
    REQUIRE(total <= budget);
  }
  for (const auto& [place, u] : used) {
    REQUIRE(is_whole(u));
    m.give_back(u.extent);
  }
  for (const std::uint32_t segment : owned) m.orphan(segment);
  CHECK(m.used_bytes() == 0);
  for (std::uint32_t s = 0; s < segments; s++) CHECK(m.readable(s, m.generation(s)) == nullptr);
}
