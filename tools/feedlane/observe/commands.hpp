// SPDX-License-Identifier: Apache-2.0
// The commands that look at loaders which run. Each adds itself to the `feedlane` command and, when it was asked for, runs
// and sets `exit_status`.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace observe {

// Loaders and rings of this user.
void add_ls(CLI::App& app, int& exit_status);
// A line an interval, with what bounds the run.
void add_top(CLI::App& app, int& exit_status);
// The machine and a running loader: what is wrong, and what to do.
void add_doctor(CLI::App& app, int& exit_status);
// Batches over time, for Perfetto and Chrome's viewer.
void add_trace(CLI::App& app, int& exit_status);
// OpenMetrics.
void add_metrics(CLI::App& app, int& exit_status);

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
