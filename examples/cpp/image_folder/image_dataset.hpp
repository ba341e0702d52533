// SPDX-License-Identifier: Apache-2.0
// The pictures as Feedlane sees them: the fields of a sample and the class that a worker runs.
#pragma once

#include <feedlane/dataset.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "folder.hpp"
#include "jpeg_decoder.hpp"
#include "picture.hpp"
#include "recipe.hpp"
#include "resizer.hpp"

namespace images {

/// The field numbers, in the order of image_fields().
constexpr size_t image_field = 0;
constexpr size_t label_field = 1;

/// "image": float32 or uint8 [3, side, side]; "label": int64, a scalar.
std::vector<feedlane::Field> image_fields(const Recipe& recipe);

class ImageDataset {
 public:
  explicit ImageDataset(const feedlane::WorkerInfo& info);
  /// One picture into its row. Throws with the file's name; a read error that may pass is feedlane::Transient.
  void get(const feedlane::Row& row);
  /// Some other picture, drawn by the row's seed.
  std::optional<int64_t> substitute(int64_t failed, uint64_t seed, uint32_t tries) const;

 private:
  void read(const std::string& path);

  Recipe recipe_;
  Folder folder_;
  JpegDecoder decoder_;
  Resizer resizer_;
  std::vector<uint8_t> file_;
  Pixels pixels_;
};

}  // namespace images
