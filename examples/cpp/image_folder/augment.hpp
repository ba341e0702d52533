// SPDX-License-Identifier: Apache-2.0
// The standard recipe of image classifiers: a random part of the picture, mirrored half the time.
#pragma once

#include "../common/random.hpp"
#include "picture.hpp"

namespace images {

struct Augmentation {
  Region crop;
  bool flip = false;
};

/// A part with 0.08 to 1 of the area and an aspect ratio from 3/4 to 4/3, or after ten misses the largest one in the middle.
Augmentation augment(uint32_t width, uint32_t height, common::Random& random);

}  // namespace images
