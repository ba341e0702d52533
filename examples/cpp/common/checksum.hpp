// SPDX-License-Identifier: Apache-2.0
// A number that two runs have in common only if they saw the same bytes in the same order. Fast, not cryptographic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace common {

class Checksum {
 public:
  Checksum() = default;
  /// Goes on behind what gave `value`.
  explicit Checksum(uint64_t value) : value_(value) {}

  void add(uint64_t word) { value_ = mix(value_, word); }
  void add(std::span<const std::byte> bytes) {
    // Four chains, so that one multiplication needn't wait for the other.
    std::array<uint64_t, 4> lanes{1, 2, 3, 4};
    std::array<uint64_t, 4> words;
    size_t at = 0;
    for (; at + sizeof words <= bytes.size(); at += sizeof words) {
      std::memcpy(words.data(), bytes.data() + at, sizeof words);
      for (size_t i = 0; i < lanes.size(); i++) lanes[i] = mix(lanes[i], words[i]);
    }
    words = {};
    if (at < bytes.size()) std::memcpy(words.data(), bytes.data() + at, bytes.size() - at);
    for (size_t i = 0; i < lanes.size(); i++) add(mix(lanes[i], words[i]));
    add(bytes.size());
  }
  uint64_t value() const { return value_; }

 private:
  static uint64_t mix(uint64_t state, uint64_t word) {
    state = (state ^ word) * 0x9e3779b97f4a7c15u;
    return state ^ (state >> 29);
  }
  uint64_t value_ = 0;
};

}  // namespace common
