// SPDX-License-Identifier: Apache-2.0
// All shards as one row of windows. A window is `length` tokens to predict from and the one that follows each: window i of a
// shard begins at token i * length and has length + 1. A shard's last tokens, too few for another one, are left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shard.hpp"

namespace tokens {

/// What makes the same windows anywhere: the bytes of LoaderOptions::worker_config, too.
struct CorpusFiles {
  std::vector<std::string> paths;
  size_t token_bytes = 2;
  size_t length = 1024;

  std::vector<std::byte> pack() const;
  /// Throws when the bytes aren't those of pack().
  static CorpusFiles unpack(std::span<const std::byte> bytes);
};

class Corpus {
 public:
  /// Maps all files. Throws.
  explicit Corpus(const CorpusFiles& files);

  /// Windows.
  size_t size() const { return ends_.back(); }
  /// Differs when windows are numbered otherwise: other sizes of files, or another length.
  uint64_t fingerprint() const;
  /// length + 1 tokens.
  void read(size_t window, std::span<int32_t> out) const;

 private:
  size_t length_;
  std::vector<Shard> shards_;
  std::vector<size_t> ends_;  ///< of each shard, the number of the window behind its last
};

}  // namespace tokens
