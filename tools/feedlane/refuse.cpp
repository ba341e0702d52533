// SPDX-License-Identifier: Apache-2.0
// Finds what is wrong with the arguments, and the name that was meant.
#include "refuse.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "observe/words.hpp"

namespace {

using Names = std::vector<std::string>;

// The number of letters to insert, delete, replace or swap with the next one.
std::size_t distance_between(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); i++) {
    for (std::size_t k = 0; k <= b.size(); k++) {
      d[i][k] = i == 0 || k == 0
                    ? i + k
                    : std::min({d[i - 1][k] + 1, d[i][k - 1] + 1, d[i - 1][k - 1] + (a[i - 1] != b[k - 1])});
      if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
        d[i][k] = std::min(d[i][k], d[i - 2][k - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

// The name at a distance of at most 2; empty: no name is that near.
std::string nearest(const std::string& given, const Names& names) {
  std::string found;
  std::size_t least = 3;
  for (const std::string& name : names)
    if (const std::size_t distance = distance_between(given, name); distance < least) least = distance, found = name;
  return found;
}

Names commands_of(const CLI::App& app) {
  Names names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

// Including the options of the commands above, which bench accepts after the name of a benchmark.
Names options_of(const CLI::App* app) {
  Names names;
  for (; app != nullptr; app = app->get_parent())
    for (const CLI::Option* option : app->get_options([](const CLI::Option* o) { return !o->get_group().empty(); }))
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

bool is_option(const std::string& argument) { return argument.starts_with('-'); }

}  // namespace

int refuse(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  std::string path = "feedlane";
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    path += ' ' + command->get_name();
  }
  const std::string help = path + " --help";
  const auto hint = [&](const std::string& given, const Names& names) {
    const std::string name = nearest(given, names);
    return name.empty() ? "see " + help : "did you mean " + name + "?";
  };
  // An unknown name explains what else is wrong: the value of a misspelled option may have been taken for a PID.
  const Names extra = app.remaining(true);
  const Names commands = commands_of(*command);
  const auto argument = std::find_if_not(extra.begin(), extra.end(), is_option);
  const auto option = std::find_if(extra.begin(), extra.end(), is_option);
  if (!commands.empty() && argument != extra.end()) {
    const std::string given = argument->substr(0, 32);
    observe::say("unknown command {}: {}", given, hint(given, commands));
  } else if (option != extra.end()) {
    const std::string given = option->substr(0, std::min<std::size_t>(option->find('='), 32));
    observe::say("unknown option {} of {}: {}", given, path, hint(given, options_of(command)));
  } else if (commands.empty() && argument != extra.end()) {
    observe::say("unexpected argument {} of {}: see {}", argument->substr(0, 32), path, help);
  } else {
    observe::say("{}; see {}", error.what(), help);
  }
  return error.get_exit_code();
}
