// SPDX-License-Identifier: Apache-2.0
// Reads an IDX file into memory and checks its header.
#include "idx.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace digits {
namespace {

constexpr uint8_t unsigned_byte = 0x08;
/// More than any file of this kind holds; keeps a damaged header from asking for all memory.
constexpr uint64_t most_values = uint64_t{1} << 30;

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

bool read_exactly(std::FILE* file, void* to, size_t bytes) { return std::fread(to, 1, bytes, file) == bytes; }

uint32_t big_endian(const uint8_t* b) {
  return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | uint32_t{b[3]};
}

}  // namespace

bool read_idx(const std::string& path, size_t ndim, Idx& out, std::string& why) {
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    why = path + ": " + std::strerror(errno);
    return false;
  }
  uint8_t word[4];
  const bool whole = read_exactly(file.get(), word, 4);
  if (!whole || word[0] != 0 || word[1] != 0 || word[2] != unsigned_byte || word[3] != ndim) {
    why = path + ": not an IDX file of unsigned bytes with " + std::to_string(ndim) + " dimensions";
    return false;
  }
  Idx idx;
  uint64_t total = 1;
  for (size_t d = 0; d < ndim; d++) {
    if (!read_exactly(file.get(), word, 4)) {
      why = path + ": ends within its header";
      return false;
    }
    const uint64_t extent = big_endian(word);
    // Divide rather than multiply: the product of damaged extents may not fit.
    if (extent == 0 || extent > most_values / total) {
      why = path + ": dimension " + std::to_string(d) + " is " + std::to_string(extent);
      return false;
    }
    total *= extent;
    idx.shape.push_back(static_cast<size_t>(extent));
  }
  idx.values.resize(static_cast<size_t>(total));
  if (!read_exactly(file.get(), idx.values.data(), idx.values.size())) {
    why = path + ": shorter than the " + std::to_string(total) + " values that its header promises";
    return false;
  }
  out = std::move(idx);
  return true;
}

}  // namespace digits
