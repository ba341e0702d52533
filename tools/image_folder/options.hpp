// SPDX-License-Identifier: Apache-2.0
// The command line.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "view.hpp"

namespace images {

/// Of red, green and blue, for values from 0 to 1.
using Colours = std::array<double, 3>;

struct Options {
  enum class Mode { worker, list, help, version };
  Mode mode = Mode::worker;
  std::string root = ".";  ///< that paths of the list are relative to, or the folder to list
  Transform transform;
  bool normalises = false;  ///< --mean or --std was given
  Colours mean{0.485, 0.456, 0.406};
  Colours deviation{0.229, 0.224, 0.225};  ///< by default ImageNet's
  uint64_t max_pixels = 178956970;         ///< of a picture, by default Pillow's limit
};

extern const char* const usage;

/// Throws std::runtime_error, with a line that names the option, the value and what is allowed.
Options parse_options(int argc, char** argv);

}  // namespace images
