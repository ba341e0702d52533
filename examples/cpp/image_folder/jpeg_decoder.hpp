// SPDX-License-Identifier: Apache-2.0
// JPEG by libjpeg-turbo, as little of it as a crop needs: rows above the crop are skipped, those below never reached,
// columns beside it left out (to whole blocks), and a crop much larger than its use is decoded at a half, a quarter or an
// eighth of its size, which the inverse transform gives for less than nothing.
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

  /// Reads the header of `file`, which must live until decode() has returned. False: `why` says what is wrong.
  bool open(std::span<const uint8_t> file, uint32_t& width, uint32_t& height, std::string& why);
  /// After open(): decodes `region` so that at least `needed` by `needed` pixels come of it, or all there are. `box`: where
  /// in `pixels` the region lies. A file that ends too early is refused; lesser damage shows in the pixels.
  bool decode(const Region& region, uint32_t needed, Pixels& pixels, Box& box, std::string& why);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace images
