// SPDX-License-Identifier: Apache-2.0
// Decoded pixels, and parts of a picture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace images {

/// A part of a picture, in whole pixels of the file.
struct Region {
  uint32_t x = 0;
  uint32_t y = 0;
  uint32_t width = 0;
  uint32_t height = 0;
};

/// A part of a picture, in fractions of a pixel.
struct Box {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

inline Box box_of(const Region& r) {
  return {double{1} * r.x, double{1} * r.y, double{1} * r.width, double{1} * r.height};
}

/// What becomes a sample.
struct View {
  Region region;      ///< the pixels that may contribute to it; no others are decoded
  Box box;            ///< the part that is resized to the sample, within the region
  bool flip = false;  ///< mirror it horizontally
};

/// Rows of pixels, four bytes each: red, green, blue and one without meaning, so that a pixel fills a vector's lanes.
class Pixels {
 public:
  static constexpr size_t channels = 4;

  /// Makes room; earlier pixels are lost. Memory is never cleared, and is kept for the next picture unless it is large and
  /// mostly unused.
  void reset(size_t width, size_t height) {
    width_ = width;
    height_ = height;
    const size_t needed = stride() * height + padding;
    if (needed <= capacity_ && (capacity_ <= kept || needed > capacity_ / 4)) return;
    capacity_ = 0;
    bytes_.reset();  // not both at once
    bytes_.reset(new uint8_t[needed]);
    capacity_ = needed;
  }
  size_t width() const { return width_; }
  size_t height() const { return height_; }
  size_t stride() const { return width_ * channels; }
  uint8_t* row(size_t y) { return bytes_.get() + y * stride(); }
  const uint8_t* row(size_t y) const { return bytes_.get() + y * stride(); }

  /// Bytes behind the last row that may be read.
  static constexpr size_t padding = 64;

 private:
  static constexpr size_t kept = size_t{16} << 20;

  std::unique_ptr<uint8_t[]> bytes_;
  size_t capacity_ = 0;
  size_t width_ = 0;
  size_t height_ = 0;
};

/// Where the file's pixels lie in decoded ones.
struct Placement {
  double scale = 1;  ///< decoded pixels per pixel of the file
  double left = 0;   ///< decoded pixels left of the first column
  double top = 0;    ///< decoded pixels above the first row

  Box of(const Box& b) const { return {b.x * scale - left, b.y * scale - top, b.width * scale, b.height * scale}; }
};

}  // namespace images
