// SPDX-License-Identifier: Apache-2.0
// What examples/cpp/image_folder makes of a JPEG's crop is what a plain decoder and a plain resizer make of it: libjpeg at full
// size without any of its short cuts, then the triangle filter as its definition says, in doubles, over the crop alone, as
// Pillow and torchvision's antialias=True do.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>
// After <cstdio>, which it needs.
#include <jpeglib.h>

#include <doctest/doctest.h>

#include "../../examples/cpp/image_folder/jpeg_decoder.hpp"
#include "../../examples/cpp/image_folder/jpeg_writer.hpp"
#include "../../examples/cpp/image_folder/photograph.hpp"
#include "../../examples/cpp/image_folder/resizer.hpp"

namespace {

using Bytes = std::vector<std::uint8_t>;

// A picture of any size: smooth light, edges, and texture of a few pixels, no noise that no two decoders agree on.
images::Photograph draw(std::size_t width, std::size_t height) {
  images::Photograph photo;
  photo.width = width;
  photo.height = height;
  for (std::size_t y = 0; y < height; y++)
    for (std::size_t x = 0; x < width; x++) {
      const auto u = static_cast<double>(x), v = static_cast<double>(y);
      const double light = 128 + 60 * std::sin(u / 70) * std::cos(v / 50) + 20 * std::sin((u + 2 * v) / 6);
      const bool dark = (x / 40 + y / 30) % 3 == 0;
      for (const double tint : {1.0, 0.8, 0.6})
        photo.rgb.push_back(static_cast<std::uint8_t>(std::clamp(light * tint - (dark ? 40 : 0), 0.0, 255.0)));
    }
  return photo;
}

Bytes file_of(const images::Photograph& photo) {
  const std::string path = std::string(std::getenv("TMPDIR") != nullptr ? std::getenv("TMPDIR") : "/tmp") +
                           "/feedlane-pixels-" + std::to_string(std::rand()) + ".jpg";
  images::write_jpeg(path, photo);
  std::ifstream file(path, std::ios::binary);
  Bytes bytes{std::istreambuf_iterator<char>(file), {}};
  std::remove(path.c_str());
  return bytes;
}

// All of it, at full size: three bytes a pixel.
Bytes decode(const Bytes& file) {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, file.data(), static_cast<unsigned long>(file.size()));
  jpeg_read_header(&jpeg, TRUE);
  jpeg.out_color_space = JCS_RGB;
  jpeg.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&jpeg);
  Bytes pixels(std::size_t{jpeg.output_width} * jpeg.output_height * 3);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row = &pixels[std::size_t{jpeg.output_scanline} * jpeg.output_width * 3];
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_decompress(&jpeg);
  jpeg_destroy_decompress(&jpeg);
  return pixels;
}

// Weights of the source pixels for output pixel `i` of `side`, over `length` source pixels.
std::vector<double> weights(std::size_t i, std::size_t side, std::size_t length) {
  const double step = static_cast<double>(length) / static_cast<double>(side);
  const double radius = std::max(step, 1.0), centre = (static_cast<double>(i) + 0.5) * step;
  std::vector<double> out(length);
  double sum = 0;
  for (std::size_t k = 0; k < length; k++)
    sum += out[k] = std::max(0.0, 1 - std::abs(static_cast<double>(k) + 0.5 - centre) / radius);
  for (double& w : out) w /= sum;
  return out;
}

// The crop at `side` x `side`, channels first, 0 to 255.
std::vector<double> reference(const Bytes& pixels, std::size_t width, const images::Region& crop, std::size_t side) {
  std::vector<double> rows(std::size_t{crop.height} * side * 3), out(3 * side * side);
  for (std::size_t x = 0; x < side; x++) {
    const std::vector<double> w = weights(x, side, crop.width);
    for (std::size_t y = 0; y < crop.height; y++)
      for (std::size_t k = 0; k < crop.width; k++)
        for (std::size_t c = 0; w[k] != 0 && c < 3; c++)
          rows[(y * side + x) * 3 + c] += w[k] * pixels[((crop.y + y) * width + crop.x + k) * 3 + c];
  }
  for (std::size_t y = 0; y < side; y++) {
    const std::vector<double> w = weights(y, side, crop.height);
    for (std::size_t k = 0; k < crop.height; k++)
      for (std::size_t at = 0; w[k] != 0 && at < side * 3; at++)
        out[at % 3 * side * side + y * side + at / 3] += w[k] * rows[k * side * 3 + at];
  }
  return out;
}

struct Difference {
  double mean, most;
};

Difference difference(std::size_t width, std::size_t height, const images::Region& crop, std::size_t side, bool flip) {
  const Bytes file = file_of(draw(width, height));
  std::vector<double> expected = reference(decode(file), width, crop, side);
  if (flip)
    for (std::size_t row = 0; row < 3 * side; row++)
      std::reverse(expected.begin() + static_cast<std::ptrdiff_t>(row * side),
                   expected.begin() + static_cast<std::ptrdiff_t>((row + 1) * side));
  images::JpegDecoder decoder;
  images::Resizer resizer(side);
  images::Pixels pixels;
  images::Box box;
  std::string why;
  std::uint32_t found_width = 0, found_height = 0;
  REQUIRE(decoder.open(file, found_width, found_height, why));
  REQUIRE(found_width == width);
  REQUIRE(found_height == height);
  REQUIRE(decoder.decode(crop, static_cast<std::uint32_t>(side), pixels, box, why));
  std::vector<float> got(3 * side * side);
  resizer.resize(pixels, box, flip, {{1, 1, 1}, {0, 0, 0}}, got.data());
  Difference d{0, 0};
  for (std::size_t i = 0; i < got.size(); i++) {
    const double off = std::abs(static_cast<double>(got[i]) - expected[i]);
    d.mean += off / static_cast<double>(got.size());
    d.most = std::max(d.most, off);
  }
  return d;
}

}  // namespace

TEST_CASE("image_folder: full-size crops differ from a plain decoder and resizer by less than 3 of 255 levels") {
  for (const images::Region& crop :
       {images::Region{0, 0, 500, 375}, images::Region{37, 53, 300, 260}, images::Region{200, 100, 64, 80},
        images::Region{1, 1, 498, 373}, images::Region{276, 151, 224, 224}})
    for (const std::size_t side : {224U, 301U})
      for (const bool flip : {false, true}) {
        const Difference d = difference(500, 375, crop, side, flip);
        CAPTURE(crop.x);
        CAPTURE(crop.width);
        CAPTURE(side);
        CHECK(d.mean < 0.02);
        CHECK(d.most < 3);  // at the left edge of a crop, where libjpeg-turbo has no neighbour for a colour's sample
      }
}

TEST_CASE("image_folder: crops decoded at 1/2, 1/4 or 1/8 size differ from the reference by less than 12 levels") {
  for (const std::size_t side : {224U, 96U, 40U}) {
    const images::Region crop{60, 32, 520, 460};
    const Difference d = difference(640, 512, crop, side, false);
    CAPTURE(side);
    CHECK(d.mean < 2);
    CHECK(d.most < 12);
  }
}

TEST_CASE("image_folder: a generated picture saved as JPEG of quality 90 has a mean error of less than 12 levels") {
  std::vector<std::uint8_t> digit(64, 8);
  common::Random random(5);
  const images::Photograph photo = images::take_photograph(digit, random);
  const Bytes pixels = decode(file_of(photo));
  REQUIRE(pixels.size() == photo.rgb.size());
  double mean = 0;
  for (std::size_t i = 0; i < pixels.size(); i++)
    mean += std::abs(double{1} * pixels[i] - photo.rgb[i]) / static_cast<double>(pixels.size());
  CHECK(mean < 12);
}
