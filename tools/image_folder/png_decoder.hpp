// SPDX-License-Identifier: Apache-2.0
// PNG by libpng. Rows below the region are never reached; rows above it must be decoded, but take no memory unless the file is
// interlaced. Transparency is dropped, 16 bits become the upper 8, and the gamma and the colour profile are ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "picture.hpp"

namespace images {

/// One thread at a time.
class PngDecoder {
 public:
  PngDecoder();
  ~PngDecoder();
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  /// Reads the header of `file`, which must live until decode() has returned. False: `why` has the reason.
  bool open(std::span<const uint8_t> file, uint32_t& width, uint32_t& height, std::string& why);
  /// After open(), once: decodes `region`. False: `why` has the reason.
  bool decode(const Region& region, Pixels& pixels, Placement& at, std::string& why);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace images
