// SPDX-License-Identifier: Apache-2.0
// A keyed permutation of [0, n), computed index by index: no memory, any place at once.
//
// A balanced Feistel network permutes the next even power of two; what it maps beyond n is mapped again until it is below
// ("cycle walking": Black, Rogaway, Ciphers with Arbitrary Finite Domains, 2002), fewer than four times on average from 64
// on. No cipher: the order is scattered, not secret.
#pragma once

#include <cstdint>

namespace feedlane::sampler {

class Feistel {
 public:
  static constexpr std::int64_t most = std::int64_t{1} << 62;

  // 0 <= n <= most.
  Feistel(std::int64_t n, std::uint64_t key);
  // The index at place `i` of [0, n).
  [[nodiscard]] std::int64_t at(std::int64_t i) const;

 private:
  static constexpr int rounds = 8;

  std::uint64_t n_;
  int half_;  // bits
  std::uint64_t mask_;
  std::uint64_t keys_[rounds];
};

// The key of an epoch's `pass`th permutation: passes follow each other when more indices are wanted than there are.
std::uint64_t feistel_key(std::uint64_t seed, std::int64_t pass);

}  // namespace feedlane::sampler
