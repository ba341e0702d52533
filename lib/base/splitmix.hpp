// SPDX-License-Identifier: Apache-2.0
// Counter-based seeds. A seed depends on a sample's position, not on its worker or the order in which samples are made.
#pragma once

#include <cstdint>

namespace feedlane {

// The output function of SplitMix64 (Steele, Lea, Flood 2014), a bijection that scatters neighbouring numbers.
constexpr std::uint64_t scatter(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
constexpr std::uint64_t golden_gamma = 0x9e3779b97f4a7c15;

constexpr std::uint64_t epoch_key(std::uint64_t base_seed, std::int64_t epoch) {
  return scatter(scatter(base_seed + golden_gamma) + static_cast<std::uint64_t>(epoch) * golden_gamma);
}
// The number at `position` of the SplitMix64 stream that begins at `key`.
constexpr std::uint64_t row_seed(std::uint64_t key, std::int64_t position) {
  return scatter(key + (static_cast<std::uint64_t>(position) + 1) * golden_gamma);
}

}  // namespace feedlane
