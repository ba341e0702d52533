// SPDX-License-Identifier: Apache-2.0
// Row seeds are a format: data sets made with them must come out the same with every later version.
#include "base/splitmix.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

using feedlane::epoch_key;
using feedlane::row_seed;

TEST_CASE("row_seed() returns the fixed values of known rows") {
  struct Known {
    std::uint64_t base;
    std::int64_t epoch, position;
    std::uint64_t seed;
  };
  for (const Known& k : {Known{0, 0, 0, 0x568a9b0b1a2c05ec},
                         {0, 0, 1, 0x44e5b8b147ef718b},
                         {0, 1, 0, 0x238275bc38fcbe91},
                         {1, 0, 0, 0x6ec85f1f8547bc0c},
                         {42, 3, 1000, 0xbace0bcd1cdbcbc7},
                         {UINT64_MAX, 0, 0, 0x695058899520ca9d},
                         {123456789, INT64_MAX, INT64_MAX, 0x6fd41b7fff87283c}}) {
    CAPTURE(k.base);
    CAPTURE(k.epoch);
    CAPTURE(k.position);
    CHECK(row_seed(epoch_key(k.base, k.epoch), k.position) == k.seed);
  }
}

TEST_CASE("scatter is SplitMix64's output function") {
  // The first numbers of a SplitMix64 stream of seed 0, as its authors' program prints them.
  CHECK(feedlane::scatter(feedlane::golden_gamma) == 0xe220a8397b1dcdaf);
  CHECK(feedlane::scatter(2 * feedlane::golden_gamma) == 0x6e789e6aa1b965f4);
}

TEST_CASE("rows at adjacent positions, epochs and base seeds all have different seeds") {
  constexpr std::int64_t rows = 100'000;
  std::vector<std::uint64_t> seeds;
  for (std::int64_t p = 0; p < rows; p++) seeds.push_back(row_seed(epoch_key(1, 0), p));
  for (std::int64_t p = 0; p < rows; p++) seeds.push_back(row_seed(epoch_key(1, 1), p));
  for (std::int64_t p = 0; p < rows; p++) seeds.push_back(row_seed(epoch_key(2, 0), p));
  for (std::int64_t e = 2; e < rows; e++) seeds.push_back(row_seed(epoch_key(1, e), 0));
  for (std::int64_t b = 3; b < rows; b++) seeds.push_back(row_seed(epoch_key(static_cast<std::uint64_t>(b), 0), 0));
  std::sort(seeds.begin(), seeds.end());
  CHECK(std::adjacent_find(seeds.begin(), seeds.end()) == seeds.end());
}

TEST_CASE("each bit of a seed is set in about half of the rows, whichever input is incremented") {
  constexpr int rows = 20'000;
  struct Way {
    const char* counted;
    std::uint64_t (*seed)(std::int64_t);
  };
  for (const Way& way :
       {Way{"position", [](std::int64_t i) { return row_seed(epoch_key(5, 5), i); }},
        {"epoch", [](std::int64_t i) { return row_seed(epoch_key(5, i), 5); }},
        {"base seed", [](std::int64_t i) { return row_seed(epoch_key(static_cast<std::uint64_t>(i), 5), 5); }}}) {
    CAPTURE(std::string(way.counted));
    int counts[64] = {};
    int changed = 0;
    for (std::int64_t i = 0; i < rows; i++) {
      const std::uint64_t seed = way.seed(i);
      for (int bit = 0; bit < 64; bit++) counts[bit] += static_cast<int>(seed >> bit & 1);
      changed += std::popcount(seed ^ way.seed(i + 1));
    }
    for (const int count : counts) {
      CHECK(count > rows / 2 - 500);  // seven standard deviations
      CHECK(count < rows / 2 + 500);
    }
    CHECK(changed > rows * 31);
    CHECK(changed < rows * 33);
  }
}
