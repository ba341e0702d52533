// SPDX-License-Identifier: Apache-2.0
// Crops pictures as feedlane-image-folder does. Reads lines from standard input: "FILE crop X Y WIDTH HEIGHT OUT_WIDTH
// OUT_HEIGHT", or "FILE centre RESIZE OUT_WIDTH OUT_HEIGHT". For each, writes OUT_WIDTH * OUT_HEIGHT * 3 bytes to standard
// output, channels first. Ends with 1 and a line on standard error if it can't.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "decoder.hpp"
#include "resizer.hpp"
#include "view.hpp"

namespace {

void crop(const std::string& path) {
  std::string mode;
  images::View view;
  images::Transform transform;
  images::Size out;
  std::cin >> mode;
  if (mode == "crop") std::cin >> view.region.x >> view.region.y >> view.region.width >> view.region.height;
  else std::cin >> transform.resize;
  std::cin >> out.width >> out.height;
  std::ifstream file(path, std::ios::binary);
  const std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  images::Decoder decoder;
  const images::Size picture = decoder.open(bytes);
  if (mode == "crop") view.box = images::box_of(view.region);
  else view = images::choose_view(transform, picture.width, picture.height, out, 0);
  images::Pixels pixels;
  images::Placement at;
  decoder.decode(view.region, images::step_of(view, out), pixels, at);
  std::vector<std::uint8_t> made(std::size_t{out.width} * out.height * 3);
  images::Resizer(out.width, out.height).resize(pixels, at, view, made.data());
  if (std::fwrite(made.data(), 1, made.size(), stdout) != made.size()) throw std::runtime_error("can't write");
}

}  // namespace

int main() {
  std::string path;
  try {
    while (std::cin >> path) crop(path);
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "%s: %s\n", path.c_str(), error.what());
    return 1;
  }
  return 0;
}
