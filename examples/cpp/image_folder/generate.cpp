// SPDX-License-Identifier: Apache-2.0
// Writes a folder of JPEGs to try the program with.
#include "generate.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>

#include "../common/progress_bar.hpp"
#include "../digits_trainer/idx.hpp"
#include "jpeg_writer.hpp"
#include "photograph.hpp"

namespace images {
namespace {

constexpr size_t digit_pixels = 64;

constexpr const char* attribution =
    "Rendered from 'Optical Recognition of Handwritten Digits' (E. Alpaydin, C. Kaynak, 1998), UCI Machine Learning\n"
    "Repository, licensed under CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/): enlarged, with another\n"
    "background and noise. Keep this attribution with every copy.\n";

digits::Idx read(const std::string& path, size_t dimensions) {
  digits::Idx idx;
  if (std::string why; !digits::read_idx(path, dimensions, idx, why)) throw std::runtime_error(why);
  return idx;
}

}  // namespace

void generate(const std::string& folder, int64_t count, const std::string& data, bool show_progress) {
  const digits::Idx pictures = read(data + "/optdigits-images-idx3-ubyte", 3);
  const digits::Idx labels = read(data + "/optdigits-labels-idx1-ubyte", 1);
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/ATTRIBUTION") << attribution;
  common::ProgressBar bar(count, show_progress);
  for (int64_t i = 0; i < count; i++) {
    const size_t digit = static_cast<size_t>(i) % labels.values.size();
    const std::string directory = folder + "/" + std::to_string(labels.values[digit]);
    std::filesystem::create_directories(directory);
    char name[32];
    std::snprintf(name, sizeof name, "/%08lld.jpg", static_cast<long long>(i));
    common::Random random(static_cast<uint64_t>(i));
    write_jpeg(directory + name,
               take_photograph(std::span(pictures.values).subspan(digit * digit_pixels, digit_pixels), random));
    if (bar.due()) bar.show(i, std::to_string(i) + " pictures");
  }
}

}  // namespace images
