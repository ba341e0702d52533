// SPDX-License-Identifier: Apache-2.0
// A small generator (SplitMix64) whose every draw is written down here, so that a seed means the same numbers with
// every compiler and standard library. std::shuffle and the std distributions promise no such thing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace common {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  /// In [0, bound). The modulo's bias is below bound / 2^64: nothing for the sizes here.
  size_t below(size_t bound) { return static_cast<size_t>(next() % bound); }

  /// In [-limit, limit): 24 random bits, which a float holds exactly.
  float symmetric(float limit) {
    const float unit = static_cast<float>(next() >> 40) * 0x1p-24f;
    return (2.0f * unit - 1.0f) * limit;
  }

 private:
  uint64_t state_;
};

}  // namespace common
