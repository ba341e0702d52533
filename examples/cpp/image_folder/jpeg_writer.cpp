// SPDX-License-Identifier: Apache-2.0
// Encodes a JPEG.
#include "jpeg_writer.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
// After <cstdio>, which it needs.
#include <jpeglib.h>

namespace images {
namespace {

constexpr int quality = 90;

struct FreeMemory {
  void operator()(unsigned char* memory) const { std::free(memory); }
};

}  // namespace

void write_jpeg(const std::string& path, const Photograph& photo) {
  // Into memory, where nothing can fail but memory: libjpeg then says so and ends the program, as it does by default.
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&jpeg, &memory, &bytes);
  jpeg.image_width = static_cast<JDIMENSION>(photo.width);
  jpeg.image_height = static_cast<JDIMENSION>(photo.height);
  jpeg.input_components = 3;
  jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, quality, TRUE);
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    // It doesn't write there.
    JSAMPROW row = const_cast<uint8_t*>(&photo.rgb[jpeg.next_scanline * photo.width * 3]);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  const std::unique_ptr<unsigned char, FreeMemory> owned(memory);

  std::FILE* const file = std::fopen(path.c_str(), "wb");
  const bool written = file != nullptr && std::fwrite(memory, 1, bytes, file) == bytes;
  if ((file != nullptr && std::fclose(file) != 0) || !written) throw std::runtime_error(path + ": can't be written");
}

}  // namespace images
