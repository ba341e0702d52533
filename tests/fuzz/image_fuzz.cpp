// SPDX-License-Identifier: Apache-2.0
// A picture from anywhere, as feedlane-image-folder decodes it: samples or an error with a text, and the next picture is decoded
// as if nothing had happened.
#include <png.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "decoder.hpp"
#include "input.hpp"
#include "resizer.hpp"
#include "view.hpp"
// After <cstdio>, which it needs.
#include <jpeglib.h>

using namespace feedlane;

namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr images::Size size{37, 29}, sample{16, 12};
constexpr std::uint64_t max_pixels = 1 << 20;

// Values of a picture with this many bytes per pixel.
Bytes draw(std::size_t channels) {
  Bytes pixels;
  for (std::size_t i = 0; i < std::size_t{size.width} * size.height * channels; i++)
    pixels.push_back(static_cast<std::uint8_t>(i * i / 7 + i % size.width * 5));
  return pixels;
}

Bytes jpeg(J_COLOR_SPACE colours, int channels, bool is_progressive) {
  jpeg_compress_struct c{};
  jpeg_error_mgr errors{};
  c.err = jpeg_std_error(&errors);
  jpeg_create_compress(&c);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&c, &memory, &bytes);
  c.image_width = size.width;
  c.image_height = size.height;
  c.input_components = channels;
  c.in_color_space = colours;
  jpeg_set_defaults(&c);
  jpeg_set_quality(&c, 40, TRUE);
  if (is_progressive) jpeg_simple_progression(&c);
  c.restart_interval = is_progressive ? 0 : 3;
  jpeg_start_compress(&c, TRUE);
  Bytes pixels = draw(static_cast<std::size_t>(channels));
  while (c.next_scanline < c.image_height) {
    JSAMPROW row = &pixels[c.next_scanline * size.width * static_cast<std::size_t>(channels)];
    (void)jpeg_write_scanlines(&c, &row, 1);
  }
  jpeg_finish_compress(&c);
  jpeg_destroy_compress(&c);
  const Bytes file(memory, memory + bytes);
  std::free(memory);
  return file;
}

Bytes png(png_uint_32 format, std::size_t bytes_per_pixel) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = size.width;
  image.height = size.height;
  image.format = format;
  image.colormap_entries = 40;
  Bytes pixels = draw(bytes_per_pixel);
  const Bytes map = draw(4);
  if ((format & PNG_FORMAT_FLAG_COLORMAP) != 0)
    for (std::uint8_t& pixel : pixels) pixel %= 40;
  png_alloc_size_t bytes = 1 << 16;
  Bytes file(bytes);
  PROMISE(png_image_write_to_memory(&image, file.data(), &bytes, 0, pixels.data(), 0, map.data()) != 0);
  file.resize(bytes);
  return file;
}

// One of each kind.
const std::vector<Bytes>& files() {
  static const std::vector<Bytes> all{
      jpeg(JCS_RGB, 3, false),          jpeg(JCS_RGB, 3, true),      jpeg(JCS_GRAYSCALE, 1, false),
      jpeg(JCS_CMYK, 4, false),         png(PNG_FORMAT_RGB, 3),      png(PNG_FORMAT_GA, 2),
      png(PNG_FORMAT_RGBA_COLORMAP, 1), png(PNG_FORMAT_LINEAR_Y, 2), png(PNG_FORMAT_RGB_COLORMAP, 1)};
  return all;
}

// Makes the checksums of a PNG's chunks right again, so that what was edited is looked at.
void fix_checksums(Bytes& file) {
  const auto number = [&](std::size_t at) { return png_get_uint_32(&file[at]); };
  for (std::size_t at = 8; at + 12 <= file.size() && number(at) <= file.size() - at - 12; at += 12 + number(at)) {
    std::uint32_t crc = ~0U;
    for (std::size_t i = at + 4; i < at + 8 + number(at); i++) {
      crc ^= file[i];
      for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320U : 0);
    }
    png_save_uint_32(&file[at + 8 + number(at)], ~crc);
  }
}

struct Worker {
  images::Decoder decoder;
  images::Pixels pixels;
  images::Resizer resizer{sample.width, sample.height};

  // The sample; throws if there is none.
  Bytes make(const Bytes& file, const images::Transform& transform, std::uint64_t seed) {
    const images::Size found = decoder.open(file);
    PROMISE(found.width >= 1 && found.height >= 1);
    if (std::uint64_t{found.width} * found.height > max_pixels) throw std::runtime_error("too large");
    const images::View view = images::choose_view(transform, found.width, found.height, sample, seed);
    PROMISE(view.region.width >= 1 && view.region.x + view.region.width <= found.width);
    PROMISE(view.region.height >= 1 && view.region.y + view.region.height <= found.height);
    images::Placement at;
    decoder.decode(view.region, images::step_of(view, sample), pixels, at);
    Bytes out(std::size_t{3} * sample.width * sample.height);
    resizer.resize(pixels, at, view, out.data());
    std::vector<float> floats(out.size());
    resizer.resize(pixels, at, view, {{1, 1, 1}, {0, 0, 0}}, floats.data());
    for (std::size_t i = 0; i < out.size(); i++) PROMISE(std::abs(floats[i] - static_cast<float>(out[i])) <= 0.501F);
    return out;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_of_input) {
  fuzz::Input in(data, size_of_input);
  static Worker worker;
  static const std::vector<Bytes> expected = [&] {
    std::vector<Bytes> all;
    for (const Bytes& file : files()) all.push_back(worker.make(file, {.resize = 16}, 1));
    return all;
  }();
  const std::size_t kind = in.pick(static_cast<std::uint32_t>(files().size()));
  Bytes file = files()[kind];
  images::Transform transform{.train = in.flag(), .resize = 16 + in.u8() % 200U, .flip = 0.5};
  transform.scale.low = in.flag() ? 0.08 : 0.0001;
  const std::uint64_t seed = in.u8();
  fuzz::edit(in, file.data(), file.size());
  if (in.flag()) fix_checksums(file);
  if (in.flag()) file.resize(file.size() * in.u8() / 256);
  file.shrink_to_fit();  // so that a sanitizer detects an access beyond the end
  try {
    (void)worker.make(file, transform, seed);
  } catch (const std::runtime_error& error) {
    PROMISE(error.what()[0] != '\0');
  }
  PROMISE(worker.make(files()[kind], {.resize = 16}, 1) == expected[kind]);
  return 0;
}
