// SPDX-License-Identifier: Apache-2.0
// The plan of a mixture: the source of the sample at each position of the stream, and the number of earlier samples
// from that source. Each position is computed separately; only the weights take memory.
//
// The sources are the leaves of a binary tree. Each node divides its picks between its two sides in proportion to their
// weights: of the first k picks, k * left / (left + right), rounded, go left. This number grows by 0 or 1 with each
// pick. So each pick goes to one side, and the number of earlier picks on that side is known without counting. The
// stream is cut into stages, within which the weights are constant. In each stage, a source continues where it stood at
// the end of the previous stage.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace feedlane::sampler {

class Sources {
 public:
  struct Pick {
    std::uint32_t source;
    std::int64_t number;  // earlier picks of this source
  };
  static constexpr std::uint64_t most = 1 << 16;
  // In each node, the sum over `most` sources stays below 2^57, and its product with a position below 2^120.
  static constexpr std::uint64_t unit = std::uint64_t{1} << 40;

  // Stage s begins at position from[s]; from[0] is 0, and the rest ascends. `shares` has one row of `count` numbers per
  // stage. The numbers are at most `unit`, and not all numbers of a row are 0.
  Sources(std::uint64_t count, std::span<const std::int64_t> from, std::span<const std::uint64_t> shares);
  // 0 <= position < 2^62 + 2^32.
  [[nodiscard]] Pick at(std::int64_t position) const;

 private:
  [[nodiscard]] std::span<const std::uint64_t> tree(std::size_t stage) const {
    return std::span(nodes_).subspan(stage * 2 * leaves_, 2 * leaves_);
  }
  void count(std::size_t stage, std::size_t node, std::int64_t picks, std::span<std::int64_t> out) const;

  std::uint64_t leaves_;              // a power of two
  std::vector<std::int64_t> from_;    // one per stage
  std::vector<std::uint64_t> nodes_;  // 2 * leaves_ per stage: node n's children are 2n and 2n + 1, the root is 1
  std::vector<std::int64_t> picked_;  // leaves_ per stage: picks of each source before the stage
};

}  // namespace feedlane::sampler
