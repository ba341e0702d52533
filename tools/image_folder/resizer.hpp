// SPDX-License-Identifier: Apache-2.0
// Bilinear resizing, antialiased: where the picture shrinks, the triangle under which pixels are averaged grows with it, as
// in Pillow and in torchvision's antialias=True. Separable: rows are mixed first, in 16-bit integers, then columns, in floats.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "picture.hpp"

namespace images {

/// What is done to a colour value of 0 to 255 after resizing: value * scale + offset, for red, green, blue.
struct Normalisation {
  std::array<float, 3> scale;
  std::array<float, 3> offset;
};

/// One thread at a time. Keeps its memory from picture to picture.
class Resizer {
 public:
  /// Writes `width` x `height` pixels, channels first: all of red, then green, then blue.
  Resizer(size_t width, size_t height);

  /// `from` has the pixels of `view`, placed as `at` says.
  void resize(const Pixels& from, const Placement& at, const View& view, const Normalisation& normalisation,
              float* out);
  /// Rounded, from 0 to 255.
  void resize(const Pixels& from, const Placement& at, const View& view, uint8_t* out);

 private:
  /// Which source pixels make which output pixel, and how much of each: `count` weights for every one, `unit` in all.
  struct Taps {
    size_t low = 0;   ///< first source pixel that contributes
    size_t high = 0;  ///< behind the last
    size_t count = 0;
    std::vector<size_t> first;
    std::vector<float> weights;
  };
  /// One dimension of the box, of the region, and of the pixels.
  struct Span {
    double start, length;
    double first, count;
    size_t limit;
  };
  static void find_taps(const Span& span, size_t outputs, double unit, Taps& taps);
  void prepare(const Pixels& from, const Placement& at, const View& view);
  void mix_rows(const Pixels& from, size_t y);
  void mix_many_rows(const Pixels& from, size_t y);
  void mix_columns();
  template <class Store>
  void run(const Pixels& from, const Placement& at, const View& view, Store store);

  const size_t width_;
  const size_t height_;
  Taps across_;
  Taps down_;
  std::vector<uint16_t> row_weights_;
  std::vector<float> mixed_;   ///< one row of the output's height: four floats a source pixel
  std::vector<float> pixels_;  ///< one output row: four floats a pixel, 0 to 255
};

}  // namespace images
