// SPDX-License-Identifier: Apache-2.0
// One file of tokens: 16-bit unsigned or 32-bit signed numbers, little-endian, nothing else. Mapped, so that every process
// that reads it shares the page cache and none copies it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tokens {

class Shard {
 public:
  /// Throws, with the name, if the file can't be mapped or isn't made of tokens of `token_bytes` (2 or 4).
  Shard(const std::string& path, size_t token_bytes);
  ~Shard();
  Shard(Shard&& other) noexcept;
  Shard& operator=(Shard&&) = delete;

  /// Tokens.
  size_t size() const { return bytes_ / token_bytes_; }
  /// Copies the tokens from `first` on, as many as fit.
  void read(size_t first, std::span<int32_t> out) const;

 private:
  const void* map_ = nullptr;
  size_t bytes_ = 0;
  size_t token_bytes_;
};

}  // namespace tokens
