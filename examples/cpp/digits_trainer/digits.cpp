// SPDX-License-Identifier: Apache-2.0
// Reads, splits and decodes the digits.
#include "digits.hpp"

#include <numeric>
#include <utility>

#include "../common/random.hpp"

namespace digits {
namespace {

constexpr float white = 16.0f;  // the greatest grey level of the files

/// Fisher-Yates over 0 .. count - 1.
std::vector<size_t> shuffled(size_t count, uint64_t seed) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  common::Random random(seed);
  for (size_t last = count - 1; last > 0; last--) std::swap(order[last], order[random.below(last + 1)]);
  return order;
}

}  // namespace

bool Digits::open(const std::string& directory, uint64_t split_seed, std::string& why) {
  if (!read_idx(directory + "/optdigits-images-idx3-ubyte", 3, images_, why)) return false;
  if (!read_idx(directory + "/optdigits-labels-idx1-ubyte", 1, labels_, why)) return false;
  if (images_.shape != std::vector<size_t>{digit_count, side, side} || labels_.shape[0] != digit_count) {
    why = directory + ": not the 1,797 digits of 8x8 pixels, or not one label for each";
    return false;
  }
  for (const uint8_t label : labels_.values) {
    if (label >= classes) {
      why = directory + ": a label is " + std::to_string(label);
      return false;
    }
  }
  order_ = shuffled(digit_count, split_seed);
  return true;
}

void Digits::decode_train(size_t index, uint64_t seed, float* image, int64_t* label) const {
  common::Random random(seed);
  const int dx = static_cast<int>(random.below(3)) - 1;
  const int dy = static_cast<int>(random.below(3)) - 1;
  decode(order_[held_out_count + index], dx, dy, image, label);
}

void Digits::decode_held_out(size_t index, float* image, int64_t* label) const {
  decode(order_[index], 0, 0, image, label);
}

void Digits::decode(size_t digit, int dx, int dy, float* image, int64_t* label) const {
  const uint8_t* grey = images_.values.data() + digit * pixels;
  constexpr int end = static_cast<int>(side);
  for (int y = 0; y < end; y++) {
    for (int x = 0; x < end; x++) {
      const int from_y = y - dy;
      const int from_x = x - dx;
      const bool inside = from_y >= 0 && from_y < end && from_x >= 0 && from_x < end;
      *image++ = inside ? static_cast<float>(grey[from_y * end + from_x]) / white : 0.0f;
    }
  }
  *label = labels_.values[digit];
}

}  // namespace digits
