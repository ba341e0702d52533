// SPDX-License-Identifier: Apache-2.0
// Chooses the part of a picture that becomes a sample, with the distributions of torchvision's transforms.
#pragma once

#include <algorithm>
#include <cstdint>

#include "picture.hpp"

namespace images {

struct Range {
  double low = 0;
  double high = 0;
};

/// A sample's width and height.
struct Size {
  uint32_t width = 0;
  uint32_t height = 0;
};

struct Transform {
  bool train = false;               ///< RandomResizedCrop; otherwise Resize and CenterCrop
  Range scale{0.08, 1};             ///< train: the crop's share of the area
  Range ratio{3.0 / 4.0, 4.0 / 3};  ///< train: the crop's width over its height
  uint32_t resize = 256;            ///< otherwise: the length of the shorter side, at least the sample's longer one
  double flip = 0;                  ///< probability of a horizontal flip
};

/// The view of a picture of `width` by `height` pixels, at least 1 by 1. All that is random comes from `seed`.
View choose_view(const Transform& transform, uint32_t width, uint32_t height, Size sample, uint64_t seed);

/// Pixels of the file for each pixel of the sample, in the direction in which they are fewer.
inline double step_of(const View& view, Size sample) {
  return std::min(view.box.width / sample.width, view.box.height / sample.height);
}

}  // namespace images
