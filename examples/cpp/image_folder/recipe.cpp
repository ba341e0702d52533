// SPDX-License-Identifier: Apache-2.0
// Packs the recipe into bytes and reads it back.
#include "recipe.hpp"

#include <cstring>
#include <stdexcept>

namespace images {
namespace {

/// The name of the folder follows, without a terminator.
struct Header {
  uint32_t side;
  uint32_t bytes;
  uint64_t fingerprint;
};

}  // namespace

std::vector<std::byte> Recipe::pack() const {
  const Header header{side, bytes ? 1u : 0u, fingerprint};
  std::vector<std::byte> packed(sizeof header + root.size());
  std::memcpy(packed.data(), &header, sizeof header);
  std::memcpy(packed.data() + sizeof header, root.data(), root.size());
  return packed;
}

Recipe Recipe::unpack(std::span<const std::byte> packed) {
  Header header;
  if (packed.size() <= sizeof header) throw std::runtime_error("the worker was told no folder");
  std::memcpy(&header, packed.data(), sizeof header);
  const std::span<const std::byte> name = packed.subspan(sizeof header);
  Recipe recipe;
  recipe.side = header.side;
  recipe.bytes = header.bytes != 0;
  recipe.fingerprint = header.fingerprint;
  recipe.root.assign(reinterpret_cast<const char*>(name.data()), name.size());
  return recipe;
}

}  // namespace images
