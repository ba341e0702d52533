// SPDX-License-Identifier: Apache-2.0
// feedlane-image-folder's crop of a JPEG compared with that of a plain decoder and a plain resizer: libjpeg at full size without
// any of its short cuts, then the triangle filter by its definition, in doubles, over the crop alone, as Pillow and torchvision's
// antialias=True do.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
// After <cstdio>, which it needs.
#include <jpeglib.h>

#include <doctest/doctest.h>

#include "jpeg_decoder.hpp"
#include "resizer.hpp"
#include "view.hpp"

namespace {

using Bytes = std::vector<std::uint8_t>;

// A JPEG of any size: smooth light, edges, and texture of a few pixels, but no noise, which two decoders would treat differently.
Bytes draw(std::size_t width, std::size_t height) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&jpeg, &memory, &bytes);
  jpeg.image_width = static_cast<JDIMENSION>(width);
  jpeg.image_height = static_cast<JDIMENSION>(height);
  jpeg.input_components = 3;
  jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 90, TRUE);
  jpeg_start_compress(&jpeg, TRUE);
  Bytes line;
  for (std::size_t y = 0; y < height; y++) {
    line.clear();
    for (std::size_t x = 0; x < width; x++) {
      const auto u = static_cast<double>(x), v = static_cast<double>(y);
      const double light = 128 + 60 * std::sin(u / 70) * std::cos(v / 50) + 20 * std::sin((u + 2 * v) / 6);
      const bool dark = (x / 40 + y / 30) % 3 == 0;
      for (const double tint : {1.0, 0.8, 0.6})
        line.push_back(static_cast<std::uint8_t>(std::clamp(light * tint - (dark ? 40 : 0), 0.0, 255.0)));
    }
    JSAMPROW row = line.data();
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  const Bytes file(memory, memory + bytes);
  std::free(memory);
  return file;
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
  const Bytes file = draw(width, height);
  std::vector<double> expected = reference(decode(file), width, crop, side);
  if (flip)
    for (std::size_t row = 0; row < 3 * side; row++)
      std::reverse(expected.begin() + static_cast<std::ptrdiff_t>(row * side),
                   expected.begin() + static_cast<std::ptrdiff_t>((row + 1) * side));
  images::JpegDecoder decoder;
  images::Resizer resizer(side, side);
  images::Pixels pixels;
  images::Placement at;
  const images::View view{crop, images::box_of(crop), flip};
  const auto out = static_cast<std::uint32_t>(side);
  std::string why;
  std::uint32_t found_width = 0, found_height = 0;
  REQUIRE(decoder.open(file, found_width, found_height, why));
  REQUIRE(found_width == width);
  REQUIRE(found_height == height);
  REQUIRE(decoder.decode(crop, images::step_of(view, {out, out}), pixels, at, why));
  std::vector<float> got(3 * side * side);
  resizer.resize(pixels, at, view, {{1, 1, 1}, {0, 0, 0}}, got.data());
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
