// SPDX-License-Identifier: Apache-2.0
// What the command lines of the examples have in common.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace common {

/// Walks over the arguments: "--name value" and "--name=value" are the same.
class Arguments {
 public:
  Arguments(int argc, char** argv) : next_(argv + 1), end_(argv + argc) {}

  bool advance() {
    if (next_ == end_) return false;
    name_ = *next_++;
    attached_.reset();
    if (const size_t equals = name_.find('='); name_.starts_with("--") && equals != std::string_view::npos) {
      attached_ = name_.substr(equals + 1);
      name_ = name_.substr(0, equals);
    }
    return true;
  }

  std::string_view name() const { return name_; }
  bool has_attached_value() const { return attached_.has_value(); }

  std::optional<std::string_view> value() {
    if (attached_) return attached_;
    if (next_ == end_) return std::nullopt;
    return std::string_view(*next_++);
  }

 private:
  char** next_;
  char** end_;
  std::string_view name_;
  std::optional<std::string_view> attached_;
};

template <class Number>
bool parse_number(std::string_view text, Number least, Number most, Number& out) {
  Number number{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size() || number < least || number > most) return false;
  out = number;
  return true;
}

/// One of some words.
template <class T>
bool choose(std::string_view text, std::initializer_list<std::pair<const char*, T>> table, T& out) {
  for (const auto& [name, value] : table) {
    if (text != name) continue;
    out = value;
    return true;
  }
  return false;
}

/// What is wanted instead; empty if the number is fine and was set.
template <class Number>
std::string set_number(std::string_view text, int64_t least, int64_t most, Number& out) {
  int64_t number = 0;
  if (!parse_number<int64_t>(text, least, most, number))
    return "a number from " + std::to_string(least) + " to " + std::to_string(most);
  out = static_cast<Number>(number);
  return {};
}

}  // namespace common
