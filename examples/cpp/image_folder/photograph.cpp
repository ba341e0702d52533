// SPDX-License-Identifier: Apache-2.0
// Draws the background, the digit and the grain.
#include "photograph.hpp"

#include <algorithm>
#include <array>

namespace images {
namespace {

constexpr size_t digit_side = 8;
constexpr float ink = 16;

/// A grid of numbers, read between its points too.
class Field {
 public:
  Field(size_t width, size_t height) : width_(width), height_(height), values_(width * height) {}
  float& at(size_t x, size_t y) { return values_[y * width_ + x]; }
  /// u and v from 0 to 1.
  float between(float u, float v) const {
    const float x = std::clamp(u, 0.0f, 1.0f) * static_cast<float>(width_ - 1);
    const float y = std::clamp(v, 0.0f, 1.0f) * static_cast<float>(height_ - 1);
    const size_t left = std::min(static_cast<size_t>(x), width_ - 2);
    const size_t top = std::min(static_cast<size_t>(y), height_ - 2);
    const float right_part = x - static_cast<float>(left);
    const float bottom_part = y - static_cast<float>(top);
    const float* const a = &values_[top * width_ + left];
    const float* const b = a + width_;
    const float upper = a[0] + (a[1] - a[0]) * right_part;
    const float lower = b[0] + (b[1] - b[0]) * right_part;
    return upper + (lower - upper) * bottom_part;
  }

 private:
  size_t width_;
  size_t height_;
  std::vector<float> values_;
};

Field noise(size_t width, size_t height, float strength, common::Random& random) {
  Field field(width, height);
  for (size_t y = 0; y < height; y++)
    for (size_t x = 0; x < width; x++) field.at(x, y) = random.symmetric(strength);
  return field;
}

Field pencil(std::span<const uint8_t> digit) {
  Field field(digit_side, digit_side);
  for (size_t y = 0; y < digit_side; y++)
    for (size_t x = 0; x < digit_side; x++) field.at(x, y) = static_cast<float>(digit[y * digit_side + x]) / ink;
  return field;
}

/// Most of about 500x375, a quarter of them upright, some smaller and some larger.
void choose_size(Photograph& photo, common::Random& random) {
  photo.width = 500;
  photo.height = 375;
  if (random.below(2) == 0) {
    photo.width = 400 + random.below(201);
    photo.height = 300 + random.below(151);
  }
  if (random.below(4) == 0) std::swap(photo.width, photo.height);
}

}  // namespace

Photograph take_photograph(std::span<const uint8_t> digit, common::Random& random) {
  Photograph photo;
  choose_size(photo, random);
  photo.rgb.resize(photo.width * photo.height * 3);
  const Field shape = pencil(digit);
  const Field light = noise(5, 4, 60, random);
  const Field texture = noise(photo.width / 6, photo.height / 6, 26, random);
  std::array<float, 3> paper{};
  std::array<float, 3> tint{};
  for (float& p : paper) p = 140 + random.symmetric(60);
  for (float& t : tint) t = 1 + random.symmetric(0.4f);
  const auto side = static_cast<float>(std::min(photo.width, photo.height));
  const float left = (static_cast<float>(photo.width) - side) / 2;
  const float top = (static_cast<float>(photo.height) - side) / 2;
  uint8_t* out = photo.rgb.data();
  for (size_t y = 0; y < photo.height; y++) {
    for (size_t x = 0; x < photo.width; x++) {
      const float u = static_cast<float>(x) / static_cast<float>(photo.width);
      const float v = static_cast<float>(y) / static_cast<float>(photo.height);
      const float covered = shape.between((static_cast<float>(x) - left) / side, (static_cast<float>(y) - top) / side);
      const float common = light.between(u, v) + texture.between(u, v) + random.symmetric(14) - 110 * covered;
      for (size_t c = 0; c < 3; c++)
        *out++ = static_cast<uint8_t>(std::clamp(paper[c] + tint[c] * common, 0.0f, 255.0f));
    }
  }
  return photo;
}

}  // namespace images
