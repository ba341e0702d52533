// SPDX-License-Identifier: Apache-2.0
// Formats text into an array of the caller: each "{}" is replaced by the next argument. Accepts integers of every type,
// and checks the number of arguments at compile time. Never allocates. Text that doesn't fit is cut.
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

// An integer that is written as 0x and hexadecimal digits.
struct Hex {
  std::uint64_t value;
};

// The value for one "{}".
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

  // Writes the value at `at`, not beyond `end`, and returns the end of the written text.
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

// A format for arguments of types A. A literal with a different number of "{}" does not compile.
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
// Prevents the compiler from deducing the types A from the format.
template <class... A>
using FormatFor = Format<std::type_identity_t<A>...>;

// Writes into `out` and terminates the text. Returns its length. `capacity` must not be 0.
std::size_t format_arguments(char* out, std::size_t capacity, const char* format,
                             std::initializer_list<FormatArgument> arguments);

template <std::size_t N, class... A>
std::size_t format_to(char (&out)[N], FormatFor<A...> format, const A&... arguments) {
  return format_arguments(out, N, format.text(), {FormatArgument(arguments)...});
}

// The first `most` bytes of a text. A C string may end earlier, at its zero byte.
inline std::string_view first(std::size_t most, const char* text) { return {text, strnlen(text, most)}; }
inline std::string_view first(std::size_t most, std::string_view text) { return text.substr(0, most); }

}  // namespace feedlane
