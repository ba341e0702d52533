// SPDX-License-Identifier: Apache-2.0
// What a run must find again to go on exactly where it was: here the loader's state and a checksum, where a trainer has its
// model and its optimiser besides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tokens {

struct Checkpoint {
  uint64_t corpus = 0;  ///< its fingerprint
  int64_t batch_size = 0;
  int64_t batches = 0;    ///< done in all
  uint64_t checksum = 0;  ///< of those
  std::vector<std::byte> loader;

  /// The file is the old one or the new one, whole, whenever the system may fail: written beside it, synced, renamed. Throws.
  void save(const std::string& path) const;
  /// Throws when the file can't be read or is no checkpoint.
  static Checkpoint read(const std::string& path);
};

}  // namespace tokens
