// SPDX-License-Identifier: Apache-2.0
// Decoded pixels and where in them something lies.
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

/// A part of decoded pixels, to fractions of one.
struct Box {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

/// Rows of pixels, four bytes each: red, green, blue and one without meaning, so that a pixel fills a vector's lanes.
class Pixels {
 public:
  static constexpr size_t channels = 4;

  /// Makes room; what was there is gone. Memory is kept for the next picture, and never cleared.
  void reset(size_t width, size_t height) {
    width_ = width;
    height_ = height;
    if (stride() * height + padding <= capacity_) return;
    capacity_ = stride() * height + padding;
    bytes_.reset(new uint8_t[capacity_]);
  }
  size_t width() const { return width_; }
  size_t height() const { return height_; }
  size_t stride() const { return width_ * channels; }
  uint8_t* row(size_t y) { return bytes_.get() + y * stride(); }
  const uint8_t* row(size_t y) const { return bytes_.get() + y * stride(); }

  /// Bytes behind the last row that may be read.
  static constexpr size_t padding = 64;

 private:
  std::unique_ptr<uint8_t[]> bytes_;
  size_t capacity_ = 0;
  size_t width_ = 0;
  size_t height_ = 0;
};

}  // namespace images
