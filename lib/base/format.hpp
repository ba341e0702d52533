// SPDX-License-Identifier: Apache-2.0
// Formats text into a caller's array: each "{}" is replaced by the next argument. Integers of every type are taken as they are,
// and the number of arguments is checked at compile time. Never allocates; text that doesn't fit is cut.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

namespace feedlane {

// An integer to be written as 0x and hexadecimal digits.
struct Hex {
  std::uint64_t value;
};

// One value of a text.
class FormatArgument {
 public:
  template <std::signed_integral T>
  FormatArgument(T value) : kind_(Kind::signed_integer), signed_(value) {}
  template <std::unsigned_integral T>
  FormatArgument(T value) : kind_(Kind::unsigned_integer), unsigned_(value) {}
  FormatArgument(Hex value) : kind_(Kind::hexadecimal), unsigned_(value.value) {}
  FormatArgument(double value) : kind_(Kind::floating), floating_(value) {}
  FormatArgument(const char* text) : FormatArgument(std::string_view(text)) {}
  FormatArgument(const std::string& text) : FormatArgument(std::string_view(text)) {}
  FormatArgument(std::string_view text) : kind_(Kind::text), text_(text.data(), text.size()) {}

  // Appends the value at `at`, up to `end`, and returns the end of what was written.
  char* write(char* at, char* end) const;

 private:
  enum class Kind { signed_integer, unsigned_integer, hexadecimal, floating, text };
  Kind kind_;
  union {
    std::int64_t signed_;
    std::uint64_t unsigned_;
    double floating_;
    std::string_view text_;
  };
};

// A format for arguments of types A. A literal with another number of "{}" does not compile.
template <class... A>
class Format {
 public:
  consteval Format(const char* text) : text_(text) {
    std::size_t places = 0;
    for (const char* c = text; *c != '\0'; c++)
      if (c[0] == '{' && c[1] == '}') places++;
    if (places != sizeof...(A)) throw "the number of {} is not the number of arguments";
  }
  [[nodiscard]] const char* text() const { return text_; }

 private:
  const char* text_;
};
// Keeps the arguments of a call from being deduced from its format.
template <class... A>
using FormatFor = Format<std::type_identity_t<A>...>;

// Writes into `out`, always terminated. Returns the length of what was written.
std::size_t format_arguments(char* out, std::size_t capacity, const char* format,
                             std::initializer_list<FormatArgument> arguments);

template <std::size_t N, class... A>
std::size_t format_to(char (&out)[N], FormatFor<A...> format, const A&... arguments) {
  return format_arguments(out, N, format.text(), {FormatArgument(arguments)...});
}

// The first `most` bytes of a text, which ends earlier at a zero byte.
inline std::string_view first(std::size_t most, const char* text) { return {text, strnlen(text, most)}; }
inline std::string_view first(std::size_t most, std::string_view text) { return text.substr(0, most); }

}  // namespace feedlane
