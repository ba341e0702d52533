// SPDX-License-Identifier: Apache-2.0
// The parser of command lines.
#include "command_line.hpp"

#include <algorithm>
#include <optional>

namespace common {
namespace {

struct Argument {
  std::string name;                       ///< up to the "=" of "--name=value"
  std::optional<std::string_view> value;  ///< behind the "="
};

Argument split(std::string_view word) {
  const size_t equals = word.find('=');
  if (!word.starts_with("--") || equals == std::string_view::npos) return {std::string(word), {}};
  return {std::string(word.substr(0, equals)), word.substr(equals + 1)};
}

}  // namespace

Parsed parse_command_line(int argc, char** argv, const std::vector<Option>& options,
                          const std::function<bool(const std::string& argument)>& operand,
                          const std::function<std::string()>& contradiction, std::string& complaint) {
  for (int i = 1; i < argc; i++) {
    Argument argument = split(argv[i]);
    const std::string& name = argument.name;
    const bool is_help = name == "--help";
    const auto option = std::find_if(options.begin(), options.end(), [&](const Option& o) { return o.name == name; });
    if (!is_help && option == options.end()) {
      if (!name.starts_with("-") && operand(name)) continue;
      complaint = "unknown option '" + name + "'";
      return Parsed::wrong;
    }
    if (is_help || option->flag != nullptr) {
      if (argument.value) {
        complaint = name + " takes no value";
        return Parsed::wrong;
      }
      if (is_help) return Parsed::help;
      *option->flag = true;
      continue;
    }
    if (!argument.value && i + 1 < argc) argument.value = argv[++i];
    if (!argument.value) {
      complaint = name + " needs a value";
      return Parsed::wrong;
    }
    const std::string wanted = option->set(*argument.value);
    if (!wanted.empty()) {
      complaint = name + " '" + std::string(*argument.value) + "': must be " + wanted;
      return Parsed::wrong;
    }
  }
  complaint = contradiction();
  return complaint.empty() ? Parsed::run : Parsed::wrong;
}

Option flag(const char* name, bool& out) { return {name, {}, &out}; }

Option path(const char* name, std::string& out) {
  return {name, [&out](std::string_view value) -> std::string {
            if (value.empty()) return "a path";
            out = value;
            return {};
          }};
}

}  // namespace common
