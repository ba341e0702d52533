// SPDX-License-Identifier: Apache-2.0
// Hashes a list of numbers, for the states of samplers that a list defines.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <span>

#include "base/splitmix.hpp"

namespace feedlane::sampler {

template <class T>
std::uint64_t content_of(std::span<const T> values) {
  std::uint64_t sum = values.size();
  for (const T value : values) {
    if constexpr (std::integral<T>) sum = scatter(sum ^ static_cast<std::uint64_t>(value));
    else sum = scatter(sum ^ std::bit_cast<std::uint64_t>(value));
  }
  return sum;
}

}  // namespace feedlane::sampler
