// SPDX-License-Identifier: Apache-2.0
// What every worker must know to make the same samples: the bytes of LoaderOptions::worker_config. Values, no pointers: a
// worker may be another process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace images {

struct Recipe {
  uint32_t side = 224;
  bool bytes = false;        ///< the image is uint8, as it is, else float32, normalised
  uint64_t fingerprint = 0;  ///< of the folder as the trainer has listed it
  std::string root;

  std::vector<std::byte> pack() const;
  /// Throws when the bytes aren't those of pack().
  static Recipe unpack(std::span<const std::byte> bytes);
};

}  // namespace images
