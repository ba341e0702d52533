// SPDX-License-Identifier: Apache-2.0
// Writing a file that must be whole whenever the program or the system fails: checkpoints.
#pragma once

#include <span>
#include <string>

namespace common {

/// The file is the old one or the new one, whole, whenever the system may fail: written beside it, synced, renamed. Throws.
void replace_file(const std::string& path, std::span<const char> bytes);

}  // namespace common
