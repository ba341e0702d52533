// SPDX-License-Identifier: Apache-2.0
// The plan of a mixture: which source the sample at each position of the stream comes from, and which of that source's samples in
// turn it is. Computed position by position, in memory for the weights alone.
//
// The sources are the leaves of a binary tree. At each node the picks are divided between its two sides in proportion to their
// weights: of the first k, k * left / (left + right) go left, rounded. That grows by 0 or 1 from pick to pick, so each pick goes
// to one side, and how many went there before is known without counting them. The stream is cut into stages, within which the
// weights are constant; a source goes on in a stage where it stood at the end of the one before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace feedlane::sampler {

class Sources {
 public:
  struct Pick {
    std::uint32_t source;
    std::int64_t number;  // how many of the source were picked before
  };
  static constexpr std::uint64_t most = 1 << 16;
  // Per node: `most` sources together stay below 2^57, and a product with a position below 2^120.
  static constexpr std::uint64_t unit = std::uint64_t{1} << 40;

  // Stage s begins at position from[s]; from[0] is 0, and the rest ascends. `shares` has a row of `count` numbers for each stage,
  // at most `unit`, not all 0 in a row.
  Sources(std::uint64_t count, std::span<const std::int64_t> from, std::span<const std::uint64_t> shares);
  // 0 <= position < 2^62 + 2^32.
  [[nodiscard]] Pick at(std::int64_t position) const;

 private:
  [[nodiscard]] std::span<const std::uint64_t> tree(std::size_t stage) const {
    return std::span(nodes_).subspan(stage * 2 * leaves_, 2 * leaves_);
  }
  void count(std::size_t stage, std::size_t node, std::int64_t picks, std::span<std::int64_t> out) const;

  std::uint64_t leaves_;              // a power of two
  std::vector<std::int64_t> from_;    // a stage each
  std::vector<std::uint64_t> nodes_;  // of a stage 2 * leaves_: node n's children are 2n and 2n + 1, the root is 1
  std::vector<std::int64_t> picked_;  // of a stage leaves_: picks of each source before it
};

}  // namespace feedlane::sampler
