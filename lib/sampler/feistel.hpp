// SPDX-License-Identifier: Apache-2.0
// A keyed permutation of [0, n), computed index by index: it takes no memory and allows random access.
//
// A balanced Feistel network permutes the numbers below the next even power of two. Values >= n are mapped again until
// they are below n ("cycle walking": Black, Rogaway, Ciphers with Arbitrary Finite Domains, 2002), for n >= 64 fewer
// than four times on average. This is not a cipher: the order is scattered, not secret.
#pragma once

#include <cstdint>

namespace feedlane::sampler {

class Feistel {
 public:
  static constexpr std::int64_t most = std::int64_t{1} << 62;

  // 0 <= n <= most.
  Feistel(std::int64_t n, std::uint64_t key);
  // The index at position `i`, 0 <= i < n.
  [[nodiscard]] std::int64_t at(std::int64_t i) const;

 private:
  static constexpr int rounds = 8;

  std::uint64_t n_;
  int half_;  // bits
  std::uint64_t mask_;
  std::uint64_t keys_[rounds];
};

// The key of permutation number `pass` of an epoch. There are several if more indices are requested than the data set
// has.
std::uint64_t feistel_key(std::uint64_t seed, std::int64_t pass);

}  // namespace feedlane::sampler
