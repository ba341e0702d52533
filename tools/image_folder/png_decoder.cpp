// SPDX-License-Identifier: Apache-2.0
// Decodes a region of a PNG.
#include "png_decoder.hpp"

#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

namespace images {

/// On an error libpng leaves by longjmp: no object with a destructor may live in the functions that it leaves.
struct PngDecoder::State {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::jmp_buf failed{};
  char text[256]{};
  char warning[128]{};            ///< the newest, which often has an error's reason
  std::span<const uint8_t> rest;  ///< of the file
  std::vector<uint8_t> row;       ///< one complete row
  int passes = 1;                 ///< more: interlaced

  ~State() { png_destroy_read_struct(&png, &info, nullptr); }

  bool open(std::span<const uint8_t> file);
  void set_output();
  bool decode(const Region& region, Pixels& pixels, Placement& at);
  void read_all(Pixels& pixels);
  void read_rows(const Region& region, Pixels& pixels);

  [[noreturn]] static void on_error(png_structp png, png_const_charp message);
  static void on_warning(png_structp png, png_const_charp message);
  static void read(png_structp png, png_bytep to, size_t bytes);
};

void PngDecoder::State::on_error(png_structp png, png_const_charp message) {
  auto* const state = static_cast<State*>(png_get_error_ptr(png));
  const bool has_warning = state->warning[0] != '\0';
  (void)std::snprintf(state->text, sizeof state->text, has_warning ? "%s (%s)" : "%s", message, state->warning);
  std::longjmp(state->failed, 1);
}

void PngDecoder::State::on_warning(png_structp png, png_const_charp message) {
  auto* const state = static_cast<State*>(png_get_error_ptr(png));
  (void)std::snprintf(state->warning, sizeof state->warning, "%s", message);
}

void PngDecoder::State::read(png_structp png, png_bytep to, size_t bytes) {
  auto* const state = static_cast<State*>(png_get_io_ptr(png));
  if (bytes > state->rest.size()) png_error(png, "the file ends too early");
  std::memcpy(to, state->rest.data(), bytes);
  state->rest = state->rest.subspan(bytes);
}

/// Four bytes a pixel. The fourth is the file's alpha or a filler.
void PngDecoder::State::set_output() {
  png_set_expand_gray_1_2_4_to_8(png);
  png_set_palette_to_rgb(png);
  png_set_strip_16(png);
  png_set_gray_to_rgb(png);
  png_set_filler(png, 255, PNG_FILLER_AFTER);
  passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  if (png_get_rowbytes(png, info) != size_t{png_get_image_width(png, info)} * Pixels::channels)
    png_error(png, "it has a colour type that libpng doesn't convert");
}

bool PngDecoder::State::open(std::span<const uint8_t> file) {
  png_destroy_read_struct(&png, &info, nullptr);  // the picture before
  warning[0] = '\0';
  if (setjmp(failed) != 0) return false;
  png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
  if (png != nullptr) info = png_create_info_struct(png);
  if (info == nullptr) return std::strcpy(text, "too little memory, or another version of libpng at run time"), false;
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);  // also known ones that need no decoding
  rest = file;
  png_set_read_fn(png, this, read);
  png_read_info(png, info);
  set_output();
  return true;
}

/// Interlaced: each pass adds pixels to the complete picture.
void PngDecoder::State::read_all(Pixels& pixels) {
  for (int pass = 0; pass < passes; pass++)
    for (size_t y = 0; y < pixels.height(); y++) png_read_row(png, pixels.row(y), nullptr);
}

void PngDecoder::State::read_rows(const Region& region, Pixels& pixels) {
  for (uint32_t y = 0; y < region.y; y++) png_read_row(png, row.data(), nullptr);
  for (uint32_t y = 0; y < region.height; y++) {
    png_read_row(png, row.data(), nullptr);
    std::memcpy(pixels.row(y), row.data() + size_t{region.x} * Pixels::channels, pixels.stride());
  }
}

bool PngDecoder::State::decode(const Region& region, Pixels& pixels, Placement& at) {
  const png_uint_32 width = png_get_image_width(png, info);
  if (passes > 1) {
    at = {};
    pixels.reset(width, png_get_image_height(png, info));
  } else {
    at = {1, double{1} * region.x, double{1} * region.y};
    pixels.reset(region.width, region.height);
    row.resize(size_t{width} * Pixels::channels);
  }
  if (setjmp(failed) != 0) return false;
  if (passes > 1) read_all(pixels);
  else read_rows(region, pixels);
  return true;
}

PngDecoder::PngDecoder() : state_(std::make_unique<State>()) {}
PngDecoder::~PngDecoder() = default;

bool PngDecoder::open(std::span<const uint8_t> file, uint32_t& width, uint32_t& height, std::string& why) {
  if (!state_->open(file)) return why = state_->text, false;
  width = png_get_image_width(state_->png, state_->info);
  height = png_get_image_height(state_->png, state_->info);
  return true;
}

bool PngDecoder::decode(const Region& region, Pixels& pixels, Placement& at, std::string& why) {
  const bool decoded = state_->decode(region, pixels, at);
  if (!decoded) why = state_->text;
  return decoded;
}

}  // namespace images
