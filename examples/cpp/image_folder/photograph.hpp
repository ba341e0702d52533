// SPDX-License-Identifier: Apache-2.0
// Makes a picture that takes a decoder as long as a photograph does: a digit of eight by eight pixels, enlarged, on a
// background of soft shapes, with the grain of a sensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../common/random.hpp"

namespace images {

struct Photograph {
  size_t width = 0;
  size_t height = 0;
  std::vector<uint8_t> rgb;
};

/// `digit`: 64 grey levels from 0 to 16.
Photograph take_photograph(std::span<const uint8_t> digit, common::Random& random);

}  // namespace images
