// SPDX-License-Identifier: Apache-2.0
// The commands that look at loaders which run. Each adds itself to the `feedlane` command and, when it was asked for, runs
// and sets `exit_status`.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <string>

namespace observe {

// Lists running loaders and rings.
void add_ls(CLI::App& app, int& exit_status);
// Shows each loader's rates and bottleneck, one line per interval.
void add_top(CLI::App& app, int& exit_status);
// Checks the machine and running loaders.
void add_doctor(CLI::App& app, int& exit_status);
// Writes batches over time, for Perfetto and Chrome's viewer.
void add_trace(CLI::App& app, int& exit_status);
// Prints OpenMetrics.
void add_metrics(CLI::App& app, int& exit_status);

// The process that a command is about: `--pid PID`, or PID alone.
inline CLI::Option* add_pid(CLI::App& command, std::int64_t& pid, const char* help) {
  constexpr std::int64_t largest = std::int64_t{1} << 22;  // PID_MAX_LIMIT of the kernel
  const auto check = [](const std::string& text) {
    std::int64_t number = 0;
    const bool is_pid = CLI::detail::lexical_cast(text, number) && number >= 1 && number <= largest;
    return is_pid ? std::string() : text + " is not a process id: use a number from 1 to " + std::to_string(largest);
  };
  return command.add_option("pid,--pid", pid, help)->type_name("PID")->check(CLI::Validator(check, ""));
}

// Checks an option that is a number of seconds. CLI::Range accepts what is no number.
inline CLI::Validator seconds_between(double least, double most) {
  const CLI::Range range(least, most);
  const auto check = [range](std::string& text) {
    double seconds = 0;
    if (CLI::detail::lexical_cast(text, seconds) && std::isnan(seconds)) return text + " is not a number";
    return range(text);
  };
  return {check, range.get_description()};
}

}  // namespace observe
