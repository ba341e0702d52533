// SPDX-License-Identifier: Apache-2.0
// Decodes files of any format that is known by its first bytes.
#pragma once

#include <cstdint>
#include <span>

#include "jpeg_decoder.hpp"
#include "picture.hpp"
#include "png_decoder.hpp"
#include "view.hpp"

namespace images {

/// One thread at a time.
class Decoder {
 public:
  /// Reads the header of `file`, which must live until decode() has returned. Throws std::runtime_error with the reason.
  Size open(std::span<const uint8_t> file);
  /// After open(), once: as JpegDecoder::decode. Throws std::runtime_error with the reason.
  void decode(const Region& region, double step, Pixels& pixels, Placement& at);

 private:
  bool is_jpeg_ = false;
  JpegDecoder jpeg_;
  PngDecoder png_;
};

}  // namespace images
