// SPDX-License-Identifier: Apache-2.0
// A folder of JPEGs to try the program with.
#pragma once

#include <cstdint>
#include <string>

namespace images {

/// Makes `folder` with a folder for each digit and `count` pictures in all, the same ones every time. `data`: where the
/// digits are. Throws.
void generate(const std::string& folder, int64_t count, const std::string& data, bool show_progress);

}  // namespace images
