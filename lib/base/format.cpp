// SPDX-License-Identifier: Apache-2.0
// Writes formatted text.
#include "base/format.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace feedlane {
namespace {

char* append(char* at, char* end, const char* from, std::size_t bytes) {
  const std::size_t copied = std::min(bytes, static_cast<std::size_t>(end - at));
  std::memcpy(at, from, copied);
  return at + copied;
}

}  // namespace

char* FormatArgument::write(char* at, char* end) const {
  char digits[32];  // enough for the longest number
  std::size_t length = 0;
  switch (kind_) {
    case Kind::signed_integer:
      length = static_cast<std::size_t>(std::to_chars(digits, digits + sizeof digits, signed_).ptr - digits);
      break;
    case Kind::unsigned_integer:
      length = static_cast<std::size_t>(std::to_chars(digits, digits + sizeof digits, unsigned_).ptr - digits);
      break;
    case Kind::hexadecimal:
      at = append(at, end, "0x", 2);
      length = static_cast<std::size_t>(std::to_chars(digits, digits + sizeof digits, unsigned_, 16).ptr - digits);
      break;
    case Kind::floating:
      length = static_cast<std::size_t>(std::snprintf(digits, sizeof digits, "%g", floating_));
      break;
    case Kind::text: return append(at, end, text_.data(), text_.size());
  }
  return append(at, end, digits, length);
}

std::size_t format_arguments(char* out, std::size_t capacity, const char* format,
                             std::initializer_list<FormatArgument> arguments) {
  char* at = out;
  char* const end = out + capacity - 1;
  const FormatArgument* argument = arguments.begin();
  while (*format != '\0') {
    const char* place = std::strstr(format, "{}");
    if (place == nullptr) place = format + std::strlen(format);
    at = append(at, end, format, static_cast<std::size_t>(place - format));
    if (*place == '\0') break;
    at = (argument++)->write(at, end);
    format = place + 2;
  }
  *at = '\0';
  return static_cast<std::size_t>(at - out);
}

}  // namespace feedlane
