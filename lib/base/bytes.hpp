// SPDX-License-Identifier: Apache-2.0
// Serialization for saved states: numbers and blobs as little-endian bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace feedlane {

// Appends to the caller's vector.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}
  void u32(std::uint32_t value) { number(value, 4); }
  void u64(std::uint64_t value) { number(value, 8); }
  void i64(std::int64_t value) { u64(static_cast<std::uint64_t>(value)); }
  // Writes the length, then the bytes.
  void blob(std::span<const std::byte> bytes) {
    u64(bytes.size());
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }

 private:
  void number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) out_.push_back(static_cast<std::byte>(value >> (8 * i)));
  }

  std::vector<std::byte>& out_;
};

// Reads what ByteWriter wrote. A read beyond the end makes `ok()` false for good and returns zero or empty, like every
// later read, so one check at the end is enough.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  std::int64_t i64() { return static_cast<std::int64_t>(u64()); }
  std::span<const std::byte> blob() {
    const std::uint64_t bytes = u64();
    return take(bytes);
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> take(std::uint64_t bytes) {
    if (!ok_ || bytes > rest_.size()) {
      ok_ = false;
      return {};
    }
    const auto taken = rest_.first(static_cast<std::size_t>(bytes));
    rest_ = rest_.subspan(static_cast<std::size_t>(bytes));
    return taken;
  }
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    std::size_t at = 0;
    for (const std::byte b : take(bytes)) value |= std::to_integer<std::uint64_t>(b) << (8 * at++);
    return value;
  }

  std::span<const std::byte> rest_;
  bool ok_ = true;
};

// 64-bit FNV-1a (Fowler, Noll, Vo). Detects every change of a single byte. Not cryptographic.
constexpr std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const std::byte b : bytes) sum = (sum ^ std::to_integer<std::uint64_t>(b)) * 0x100000001b3;
  return sum;
}

}  // namespace feedlane
