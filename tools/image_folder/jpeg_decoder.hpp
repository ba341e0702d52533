// SPDX-License-Identifier: Apache-2.0
// JPEG by libjpeg-turbo, as little of it as a region needs: rows above it are skipped, rows below it never reached, columns
// to its sides left out (to whole blocks), and a region that will shrink is decoded at a half, a quarter or an eighth of its
// size, which the inverse transform does at no cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "picture.hpp"

namespace images {

/// One thread at a time. Keeps its memory from picture to picture.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  /// Reads the header of `file`, which must live until decode() has returned. False: `why` has the reason.
  bool open(std::span<const uint8_t> file, uint32_t& width, uint32_t& height, std::string& why);
  /// After open(), once: decodes `region`. `step`: pixels of the file for each pixel that the caller wants; above 2, a smaller
  /// picture may be decoded. False: `why` has the reason, for example a file that ends before the region does. Lesser damage
  /// shows in the pixels.
  bool decode(const Region& region, double step, Pixels& pixels, Placement& at, std::string& why);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace images
