// SPDX-License-Identifier: Apache-2.0
// The Feistel network.
#include "sampler/feistel.hpp"

#include <algorithm>
#include <bit>

#include "base/splitmix.hpp"

namespace feedlane::sampler {

Feistel::Feistel(std::int64_t n, std::uint64_t key) : n_(static_cast<std::uint64_t>(n)) {
  const int bits = static_cast<int>(std::bit_width(n_ > 0 ? n_ - 1 : 0));
  half_ = std::max((bits + 1) / 2, 3);  // smaller halves yield too few different permutations
  mask_ = (std::uint64_t{1} << half_) - 1;
  for (std::uint64_t& k : keys_) k = scatter(key += golden_gamma);
}

std::int64_t Feistel::at(std::int64_t i) const {
  auto x = static_cast<std::uint64_t>(i);
  do {
    std::uint64_t left = x >> half_;
    std::uint64_t right = x & mask_;
    for (const std::uint64_t key : keys_) {
      const std::uint64_t mixed = left ^ (scatter(right + key) & mask_);
      left = right;
      right = mixed;
    }
    x = left << half_ | right;
  } while (x >= n_);
  return static_cast<std::int64_t>(x);
}

std::uint64_t feistel_key(std::uint64_t seed, std::int64_t pass) {
  return scatter(scatter(seed + golden_gamma) + static_cast<std::uint64_t>(pass) * golden_gamma);
}

}  // namespace feedlane::sampler
