// SPDX-License-Identifier: Apache-2.0
// Alias tables, by which weighted samplers draw.
#include "sampler/alias.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

using feedlane::sampler::AliasTable;

namespace {

// The smallest number that stands for column `i` of n.
std::uint64_t column(std::size_t i, std::size_t n) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(((Wide{i} << 64) + n - 1) / n);
}

}  // namespace

TEST_CASE("no index of weight zero is drawn, whatever the rounding") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 3000; round++) {
    std::vector<double> weights(1 + random() % 40);
    for (double& w : weights) w = random() % 3 == 0 ? 0 : static_cast<double>(random() % 1000) / 7;
    weights[random() % weights.size()] = 0.1;
    const AliasTable table(weights);
    for (std::size_t i = 0; i < weights.size(); i++)
      for (const std::uint64_t coin : {UINT64_C(0), UINT64_MAX / 2, UINT64_MAX}) {
        const std::int64_t drawn = table.draw(column(i, weights.size()), coin);
        REQUIRE(drawn >= 0);
        REQUIRE(drawn < static_cast<std::int64_t>(weights.size()));
        CHECK(weights[static_cast<std::size_t>(drawn)] > 0);
      }
  }
}

// promise: sampler-weighted-drawn
TEST_CASE("each index is drawn in proportion to its weight, counted over all columns and coins") {
  const std::vector<double> weights{1, 0, 2, 5, 0.5, 3.5};
  const AliasTable table(weights);
  std::vector<int> found(weights.size());
  for (std::size_t i = 0; i < weights.size(); i++)
    for (std::uint64_t coin = 0; coin < 1000; coin++)
      found[static_cast<std::size_t>(table.draw(column(i, weights.size()), coin * (UINT64_MAX / 1000)))]++;
  for (std::size_t i = 0; i < weights.size(); i++)
    CHECK_MESSAGE(std::abs(found[i] - weights[i] * 500) <= 6, "6,000 draws, off by less than one a column");
}
