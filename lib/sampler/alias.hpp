// SPDX-License-Identifier: Apache-2.0
// Draws from a discrete distribution in constant time: the alias method of Walker, tables by Vose (1991).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace feedlane::sampler {

class AliasTable {
 public:
  AliasTable() = default;
  // Finite weights >= 0, one at least > 0. 16 bytes a weight.
  explicit AliasTable(std::span<const double> weights);
  // An index by two uniform 64-bit numbers; never one whose weight is 0.
  [[nodiscard]] std::int64_t draw(std::uint64_t column, std::uint64_t coin) const;

 private:
  struct Column {
    double keep;         // how likely the column stands for itself
    std::int64_t alias;  // and for which else otherwise
  };
  std::vector<Column> columns_;
};

}  // namespace feedlane::sampler
