// SPDX-License-Identifier: Apache-2.0
// Decodes a region of a JPEG.
#include "jpeg_decoder.hpp"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
// After <cstdio>, which it needs.
#include <jpeglib.h>
// After <jpeglib.h>.
#include <jerror.h>

namespace images {

/// On an error libjpeg leaves by longjmp: no object with a destructor may live in the functions that it leaves.
struct JpegDecoder::State {
  jpeg_error_mgr errors{};  // first: libjpeg has a pointer to it, which is cast
  std::jmp_buf failed{};
  char text[JMSG_LENGTH_MAX]{};
  jpeg_progress_mgr progress{};
  jpeg_decompress_struct jpeg{};

  State() {
    jpeg.err = jpeg_std_error(&errors);
    errors.error_exit = on_error;
    errors.emit_message = on_message;
    jpeg_create_decompress(&jpeg);
    progress.progress_monitor = on_progress;
    jpeg.progress = &progress;
  }
  ~State() { jpeg_destroy_decompress(&jpeg); }

  bool open(std::span<const uint8_t> file);
  bool decode(const Region& region, unsigned scale, Pixels& pixels, Placement& at);
  void crop(const Region& region, unsigned scale, Pixels& pixels, Placement& at);
  void read_rows(Pixels& pixels);

  static void on_error(j_common_ptr common);
  static void on_message(j_common_ptr common, int level);
  static void on_progress(j_common_ptr common);
};

namespace {

/// A progressive JPEG of a few bytes can have thousands of scans, each of which passes over the complete picture. Encoders
/// write about ten.
constexpr int most_scans = 500;

/// Scales are eighths. libjpeg-turbo has vector code for 2 and 4, and 1 is a lookup; the scales between these take longer
/// than decoding at full size.
unsigned choose_scale(double step) {
  for (const unsigned eighths : {1u, 2u, 4u})
    if (step * eighths >= 8) return eighths;
  return 8;
}

/// Of Adobe's CMYK, whose values are inverted. Files with other CMYK are too rare to distinguish; Pillow doesn't either.
void cmyk_to_rgb(Pixels& pixels) {
  for (size_t y = 0; y < pixels.height(); y++) {
    uint8_t* const row = pixels.row(y);
    for (size_t x = 0; x < pixels.width(); x++)
      for (size_t c = 0; c < 3; c++)
        row[4 * x + c] = static_cast<uint8_t>(row[4 * x + c] * unsigned{row[4 * x + 3]} / 255);
  }
}

}  // namespace

void JpegDecoder::State::on_error(j_common_ptr common) {
  auto* const state = reinterpret_cast<State*>(common->err);
  common->err->format_message(common, state->text);
  std::longjmp(state->failed, 1);
}

void JpegDecoder::State::on_message(j_common_ptr common, int level) {
  if (level < 0 && common->err->msg_code == JWRN_JPEG_EOF) on_error(common);
}

void JpegDecoder::State::on_progress(j_common_ptr common) {
  if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number <= most_scans) return;
  auto* const state = reinterpret_cast<State*>(common->err);
  (void)std::snprintf(state->text, sizeof state->text, "it has more than %d scans", most_scans);
  std::longjmp(state->failed, 1);
}

bool JpegDecoder::State::open(std::span<const uint8_t> file) {
  if (setjmp(failed) != 0) return false;
  jpeg_abort_decompress(&jpeg);  // the picture before
  jpeg_mem_src(&jpeg, file.data(), static_cast<unsigned long>(file.size()));
  jpeg_read_header(&jpeg, TRUE);
  return true;
}

/// Leaves out what lies to the sides of the region and above it.
void JpegDecoder::State::crop(const Region& region, unsigned scale, Pixels& pixels, Placement& at) {
  const auto last = [&](uint32_t end, JDIMENSION limit) {
    return std::min<JDIMENSION>(limit, static_cast<JDIMENSION>((uint64_t{end} * scale + 7) / 8));
  };
  JDIMENSION left = region.x * scale / 8;
  const JDIMENSION top = region.y * scale / 8;
  JDIMENSION width = std::max<JDIMENSION>(1, last(region.x + region.width, jpeg.output_width) - left);
  const JDIMENSION height = std::max<JDIMENSION>(1, last(region.y + region.height, jpeg.output_height) - top);
  if (width < jpeg.output_width) jpeg_crop_scanline(&jpeg, &left, &width);
  else left = 0;
  if (top > 0) jpeg_skip_scanlines(&jpeg, top);
  pixels.reset(width, height);
  at = {scale / 8.0, double{1} * left, double{1} * top};
}

void JpegDecoder::State::read_rows(Pixels& pixels) {
  constexpr JDIMENSION most = 8;
  JSAMPROW rows[most];
  for (size_t y = 0; y < pixels.height();) {
    const auto wanted = static_cast<JDIMENSION>(std::min<size_t>(most, pixels.height() - y));
    for (JDIMENSION i = 0; i < wanted; i++) rows[i] = pixels.row(y + i);
    y += jpeg_read_scanlines(&jpeg, rows, wanted);
  }
}

bool JpegDecoder::State::decode(const Region& region, unsigned scale, Pixels& pixels, Placement& at) {
  if (setjmp(failed) != 0) return false;
  const bool cmyk = jpeg.num_components == 4;
  jpeg.out_color_space = cmyk ? JCS_CMYK : JCS_EXT_RGBX;
  jpeg.scale_num = scale;
  jpeg.scale_denom = 8;
  jpeg.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&jpeg);
  crop(region, scale, pixels, at);
  read_rows(pixels);
  if (cmyk) cmyk_to_rgb(pixels);
  return true;
}

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {}
JpegDecoder::~JpegDecoder() = default;

bool JpegDecoder::open(std::span<const uint8_t> file, uint32_t& width, uint32_t& height, std::string& why) {
  if (!state_->open(file)) return why = state_->text, false;
  width = state_->jpeg.image_width;
  height = state_->jpeg.image_height;
  return true;
}

bool JpegDecoder::decode(const Region& region, double step, Pixels& pixels, Placement& at, std::string& why) {
  const bool decoded = state_->decode(region, choose_scale(step), pixels, at);
  if (!decoded) why = state_->text;
  return decoded;
}

}  // namespace images
