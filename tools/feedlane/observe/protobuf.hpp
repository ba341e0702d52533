// SPDX-License-Identifier: Apache-2.0
// Writes protobuf messages: https://protobuf.dev/programming-guides/encoding/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace observe {

// A message, as bytes. Fields are written in the order of the calls.
class Message {
 public:
  // uint64, uint32, enum, bool; int64 and int32 as their two's complement.
  Message& number(std::uint32_t field, std::uint64_t value) {
    key(field, 0);
    varint(value);
    return *this;
  }
  Message& fixed64(std::uint32_t field, std::uint64_t value) {
    key(field, 1);
    for (int i = 0; i < 8; i++) bytes_.push_back(static_cast<char>(value >> (8 * i)));
    return *this;
  }
  // string, bytes.
  Message& text(std::uint32_t field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_.append(value);
    return *this;
  }
  Message& message(std::uint32_t field, const Message& value) { return text(field, value.bytes_); }

  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  void key(std::uint32_t field, std::uint32_t wire_type) { varint(field << 3 | wire_type); }
  void varint(std::uint64_t value) {
    for (; value > 127; value >>= 7) bytes_.push_back(static_cast<char>(value | 128));
    bytes_.push_back(static_cast<char>(value));
  }

  std::string bytes_;
};

}  // namespace observe
