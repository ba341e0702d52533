// SPDX-License-Identifier: Apache-2.0
// Chooses the decoder of a file.
#include "decoder.hpp"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace images {
namespace {

bool begins_with(std::span<const uint8_t> file, std::initializer_list<uint8_t> bytes) {
  return file.size() >= bytes.size() && std::equal(bytes.begin(), bytes.end(), file.begin());
}

std::string first_bytes(std::span<const uint8_t> file) {
  char text[32]{};
  for (size_t i = 0; i < std::min<size_t>(file.size(), 8); i++) (void)std::snprintf(text + 3 * i, 4, " %02x", file[i]);
  return text;
}

}  // namespace

Size Decoder::open(std::span<const uint8_t> file) {
  if (file.empty()) throw std::runtime_error("the file is empty");
  is_jpeg_ = begins_with(file, {0xff, 0xd8, 0xff});
  if (!is_jpeg_ && !begins_with(file, {0x89, 'P', 'N', 'G'}))
    throw std::runtime_error("the file is neither a JPEG nor a PNG, it begins with the bytes" + first_bytes(file) +
                             "; convert it or remove it");
  Size size;
  std::string why;
  if (!(is_jpeg_ ? jpeg_.open(file, size.width, size.height, why) : png_.open(file, size.width, size.height, why)))
    throw std::runtime_error(why);
  return size;
}

void Decoder::decode(const Region& region, double step, Pixels& pixels, Placement& at) {
  std::string why;
  if (!(is_jpeg_ ? jpeg_.decode(region, step, pixels, at, why) : png_.decode(region, pixels, at, why)))
    throw std::runtime_error(why);
}

}  // namespace images
