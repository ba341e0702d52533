// SPDX-License-Identifier: Apache-2.0
// Command lines of the examples: a program's options are a table of names and of what each does with its value.
#pragma once

#include <charconv>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace common {

struct Option {
  std::string name;  ///< with its dashes
  /// Takes the option's value. Returns what the value must be instead; empty: it was accepted.
  std::function<std::string(std::string_view value)> set;
  bool* flag = nullptr;  ///< not null: a flag, which takes no value; `set` is not used
};

/// What to do next: run the program, print the usage, or print the complaint.
enum class Parsed { run, help, wrong };

/// Reads the arguments; "--name value" and "--name=value" are the same, and --help is known. `operand` takes an argument that
/// is no option, or returns false. `contradiction` looks at all of them together and says what is wrong; empty: nothing is.
/// `wrong`: `complaint` is a line that names the option.
Parsed parse_command_line(int argc, char** argv, const std::vector<Option>& options,
                          const std::function<bool(const std::string& argument)>& operand,
                          const std::function<std::string()>& contradiction, std::string& complaint);

Option flag(const char* name, bool& out);
Option path(const char* name, std::string& out);

/// An integer within limits, both included.
template <class Limit = int64_t, class Out>
Option number(const char* name, std::type_identity_t<Limit> least, std::type_identity_t<Limit> most, Out& out) {
  return {name, [least, most, &out](std::string_view value) -> std::string {
            Limit read{};
            const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), read);
            if (failure != std::errc() || end != value.data() + value.size() || read < least || read > most)
              return "a number from " + std::to_string(least) + " to " + std::to_string(most);
            out = static_cast<Out>(read);
            return {};
          }};
}

/// One of some words, each with its meaning.
template <class T, class Out>
Option choice(const char* name, std::vector<std::pair<std::string, T>> words, Out& out) {
  return {name, [words = std::move(words), &out](std::string_view value) {
            std::string wanted;
            for (size_t i = 0; i < words.size(); i++) {
              if (value == words[i].first) {
                out = words[i].second;
                return std::string();
              }
              if (i > 0) wanted += i + 1 < words.size() ? ", " : " or ";
              wanted += words[i].first;
            }
            return wanted;
          }};
}

}  // namespace common
