// SPDX-License-Identifier: Apache-2.0
// Builds alias tables.
#include "sampler/alias.hpp"

#include <algorithm>

namespace feedlane::sampler {

AliasTable::AliasTable(std::span<const double> weights) {
  const std::size_t n = weights.size();
  const auto heaviest = std::max_element(weights.begin(), weights.end());
  // Divides by the largest weight first, so that no sum overflows.
  double sum = 0;
  for (const double w : weights) sum += w / *heaviest;
  columns_.reserve(n);
  for (const double w : weights) columns_.push_back({w / *heaviest / sum * static_cast<double>(n), -1});

  std::vector<std::int64_t> small, large;
  for (std::size_t i = 0; i < n; i++) (columns_[i].keep < 1 ? small : large).push_back(static_cast<std::int64_t>(i));
  const auto column = [&](std::int64_t i) -> Column& { return columns_[static_cast<std::size_t>(i)]; };
  while (!small.empty() && !large.empty()) {
    const std::int64_t poor = small.back();
    const std::int64_t rich = large.back();
    small.pop_back();
    column(poor).alias = rich;
    column(rich).keep -= 1 - column(poor).keep;
    if (column(rich).keep < 1) {
      large.pop_back();
      small.push_back(rich);
    }
  }
  // Rounding leaves columns in both lists. They keep their own index, except columns of weight 0, which must never be
  // drawn.
  for (const std::int64_t i : large) column(i).keep = 1;
  for (const std::int64_t i : small) {
    const bool never = weights[static_cast<std::size_t>(i)] == 0;
    column(i) = {never ? 0.0 : 1.0, never ? heaviest - weights.begin() : i};
  }
}

std::int64_t AliasTable::draw(std::uint64_t column, std::uint64_t coin) const {
  __extension__ using Wide = unsigned __int128;
  const auto i = static_cast<std::int64_t>((Wide{column} * columns_.size()) >> 64);
  const Column& c = columns_[static_cast<std::size_t>(i)];
  return static_cast<double>(coin >> 11) * 0x1p-53 < c.keep ? i : c.alias;
}

}  // namespace feedlane::sampler
