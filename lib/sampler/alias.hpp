// SPDX-License-Identifier: Apache-2.0
// Draws from a discrete distribution in constant time: Walker's alias method, with tables as in Vose (1991).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace feedlane::sampler {

class AliasTable {
 public:
  AliasTable() = default;
  // Weights must be finite and >= 0, at least one > 0. Takes 16 bytes per weight.
  explicit AliasTable(std::span<const double> weights);
  // An index, drawn with two uniform 64-bit numbers. Never an index of weight 0.
  [[nodiscard]] std::int64_t draw(std::uint64_t column, std::uint64_t coin) const;

 private:
  struct Column {
    double keep;         // probability of the column's own index
    std::int64_t alias;  // index otherwise
  };
  std::vector<Column> columns_;
};

}  // namespace feedlane::sampler
