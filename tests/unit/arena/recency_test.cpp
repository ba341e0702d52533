// SPDX-License-Identifier: Apache-2.0
// Recency: the entry that was used earliest comes first, whatever was added, renewed and removed.
#include "arena/recency.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

using namespace feedlane::arena;

TEST_CASE("the least recently used entry comes first") {
  Recency r(8);
  r.add(3, 30);
  r.add(1, 10);
  r.add(2, 20);
  CHECK(r.front() == 1);
  r.renew_front(25);
  CHECK(r.front() == 2);
  r.remove(2);
  CHECK(r.front() == 1);
  r.remove(7);  // it is not here
  CHECK(r.size() == 2);
  CHECK(r.used_ns(3) == 30);
}

TEST_CASE("random use keeps the order") {
  std::mt19937_64 random(5);
  Recency r(200);
  std::map<std::uint32_t, std::uint64_t> expected;
  for (std::uint64_t step = 1; step < 20'000; step++) {
    const auto entry = static_cast<std::uint32_t>(random() % 200);
    const std::uint64_t used = random() % 1'000'000 * 32'768 + step;  // no two are equal
    if (expected.count(entry) == 0) {
      r.add(entry, used);
      expected[entry] = used;
    } else if (random() % 3 == 0) {
      r.remove(entry);
      expected.erase(entry);
    } else {
      const std::uint32_t front = r.front();
      const std::uint64_t later = expected[front] + random() % 1'000'000'000 * 32'768;
      r.renew_front(later);
      expected[front] = later;
    }
    REQUIRE(r.size() == expected.size());
    if (expected.empty()) continue;
    const auto first = std::min_element(expected.begin(), expected.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
    REQUIRE(r.used_ns(r.front()) == first->second);
  }
}
