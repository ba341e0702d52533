// SPDX-License-Identifier: Apache-2.0
// RandomResizedCrop, Resize with CenterCrop, and RandomHorizontalFlip.
#include "view.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace images {
namespace {

constexpr int tries = 10;

/// The standard defines every number of this engine, but not what its distributions make of them.
using Random = std::mt19937_64;

double uniform(Random& random, Range range) {
  return range.low + static_cast<double>(random() >> 11) * 0x1p-53 * (range.high - range.low);
}

uint32_t below(Random& random, uint32_t bound) { return static_cast<uint32_t>(random() % bound); }

/// The largest crop in the middle whose ratio is allowed.
Region largest_crop(uint32_t width, uint32_t height, Range ratio) {
  const double given = double{1} * width / height;
  Region r{0, 0, width, height};
  if (given < ratio.low) r.height = static_cast<uint32_t>(std::max(1L, std::lround(width / ratio.low)));
  else if (given > ratio.high) r.width = static_cast<uint32_t>(std::max(1L, std::lround(height * ratio.high)));
  r.x = (width - r.width) / 2;
  r.y = (height - r.height) / 2;
  return r;
}

Region random_crop(const Transform& t, uint32_t width, uint32_t height, Random& random) {
  const double area = double{1} * width * height;
  const Range logarithms{std::log(t.ratio.low), std::log(t.ratio.high)};
  for (int i = 0; i < tries; i++) {
    const double target = area * uniform(random, t.scale);
    const double ratio = std::exp(uniform(random, logarithms));
    const double w = std::round(std::sqrt(target * ratio));
    const double h = std::round(std::sqrt(target / ratio));
    if (!(w >= 1 && h >= 1 && w <= width && h <= height)) continue;
    Region r{0, 0, static_cast<uint32_t>(w), static_cast<uint32_t>(h)};
    r.y = below(random, height - r.height + 1);
    r.x = below(random, width - r.width + 1);
    return r;
  }
  return largest_crop(width, height, t.ratio);
}

/// One dimension of Resize and CenterCrop: the file's pixels are `length`, after resizing they are `resized`, of which the
/// middle `crop` are used. The filter reaches over the edges of the crop.
void middle(uint32_t length, uint32_t resized, uint32_t crop, double& start, double& extent, uint32_t& first,
            uint32_t& count) {
  const double step = double{1} * length / resized;
  start = std::nearbyint((resized - crop) / 2.0) * step;  // halves to the even number, as Python's round
  extent = crop * step;
  const double reach = std::max(step, 1.0);
  const double low = std::max(0.0, std::floor(start - reach));
  const double high = std::min<double>(length, std::ceil(start + extent + reach));
  first = static_cast<uint32_t>(low);
  count = static_cast<uint32_t>(high - low);
}

View centre_crop(const Transform& t, uint32_t width, uint32_t height, Size sample) {
  const uint64_t shorter = std::min(width, height);
  const auto resized = [&](uint32_t length) { return static_cast<uint32_t>(uint64_t{t.resize} * length / shorter); };
  View v;
  middle(width, resized(width), sample.width, v.box.x, v.box.width, v.region.x, v.region.width);
  middle(height, resized(height), sample.height, v.box.y, v.box.height, v.region.y, v.region.height);
  return v;
}

}  // namespace

View choose_view(const Transform& transform, uint32_t width, uint32_t height, Size sample, uint64_t seed) {
  Random random(seed);
  View v;
  if (transform.train) {
    v.region = random_crop(transform, width, height, random);
    v.box = box_of(v.region);
  } else {
    v = centre_crop(transform, width, height, sample);
  }
  v.flip = uniform(random, {0, 1}) < transform.flip;
  return v;
}

}  // namespace images
