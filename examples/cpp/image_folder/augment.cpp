// SPDX-License-Identifier: Apache-2.0
// Draws the crop and the flip of a sample from its seed.
#include "augment.hpp"

#include <cmath>
#include <cstdint>

namespace images {
namespace {

constexpr double least_area = 0.08;
constexpr double least_ratio = 3.0 / 4.0;
constexpr double most_ratio = 4.0 / 3.0;
constexpr int tries = 10;

double uniform(common::Random& random, double low, double high) {
  return low + static_cast<double>(random.next() >> 11) * 0x1p-53 * (high - low);
}

Region centre(uint32_t width, uint32_t height) {
  const double ratio = double{1} * width / height;
  Region r{0, 0, width, height};
  if (ratio < least_ratio) r.height = static_cast<uint32_t>(std::lround(width / least_ratio));
  else if (ratio > most_ratio) r.width = static_cast<uint32_t>(std::lround(height * most_ratio));
  r.x = (width - r.width) / 2;
  r.y = (height - r.height) / 2;
  return r;
}

Region random_crop(uint32_t width, uint32_t height, common::Random& random) {
  const double area = double{1} * width * height;
  for (int i = 0; i < tries; i++) {
    const double target = area * uniform(random, least_area, 1);
    const double ratio = std::exp(uniform(random, std::log(least_ratio), std::log(most_ratio)));
    const auto w = static_cast<uint32_t>(std::lround(std::sqrt(target * ratio)));
    const auto h = static_cast<uint32_t>(std::lround(std::sqrt(target / ratio)));
    if (w == 0 || h == 0 || w > width || h > height) continue;
    const auto y = static_cast<uint32_t>(random.below(height - h + 1));
    const auto x = static_cast<uint32_t>(random.below(width - w + 1));
    return {x, y, w, h};
  }
  return centre(width, height);
}

}  // namespace

Augmentation augment(uint32_t width, uint32_t height, common::Random& random) {
  Augmentation a;
  a.crop = random_crop(width, height, random);
  a.flip = (random.next() >> 63) != 0;
  return a;
}

}  // namespace images
