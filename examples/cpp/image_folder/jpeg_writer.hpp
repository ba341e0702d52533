// SPDX-License-Identifier: Apache-2.0
// Writing JPEGs.
#pragma once

#include <string>

#include "photograph.hpp"

namespace images {

/// Writes a JPEG of quality 90. Throws if the file can't be written.
void write_jpeg(const std::string& path, const Photograph& photo);

}  // namespace images
