// SPDX-License-Identifier: Apache-2.0
// Reading IDX, the file format of MNIST: big-endian magic (0, 0, element type, number of dimensions), the dimensions as
// 32-bit numbers, then the elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace digits {

struct Idx {
  std::vector<size_t> shape;
  std::vector<uint8_t> values;
};

/// Reads a file of unsigned bytes with exactly `ndim` dimensions. False: `why` is a line that names the file.
bool read_idx(const std::string& path, size_t ndim, Idx& out, std::string& why);

}  // namespace digits
