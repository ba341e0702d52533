// SPDX-License-Identifier: Apache-2.0
// Crops pictures as examples/cpp/image_folder does. Reads lines "file x y width height side" from standard input; writes
// side * side * 3 bytes for each to standard output, channels first. Ends with 1 and a line on standard error if it can't.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "../../examples/cpp/image_folder/jpeg_decoder.hpp"
#include "../../examples/cpp/image_folder/resizer.hpp"

int main() {
  std::string path, why;
  images::Region crop{};
  std::uint32_t side = 0;
  images::JpegDecoder decoder;
  while (std::cin >> path >> crop.x >> crop.y >> crop.width >> crop.height >> side) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
    std::uint32_t width = 0, height = 0;
    images::Pixels pixels;
    images::Box box;
    if (!decoder.open(bytes, width, height, why) || !decoder.decode(crop, side, pixels, box, why)) {
      (void)std::fprintf(stderr, "%s: %s\n", path.c_str(), why.c_str());
      return 1;
    }
    std::vector<std::uint8_t> out(std::size_t{side} * side * 3);
    images::Resizer(side).resize(pixels, box, false, out.data());
    if (std::fwrite(out.data(), 1, out.size(), stdout) != out.size()) return 1;
  }
  return 0;
}
