// SPDX-License-Identifier: Apache-2.0
// What the main functions of the examples have in common: exit codes, errors on stderr, and the worker that is the program
// itself, started again.
#pragma once

#include <feedlane/feedlane.hpp>

#include <functional>
#include <string>

#include "command_line.hpp"
#include "complain.hpp"

namespace common {

constexpr int exit_failure = 1;
constexpr int exit_usage = 2;
constexpr int exit_interrupted = 130;  // what shells say of a program that Ctrl-C ended

/// Prints `why` behind the program's name on stderr. Returns the exit code.
int refuse(const std::string& why, int exit_code);

/// The worker's side: runs until the trainer wants no more. Returns the exit code.
template <class Dataset>
int run_worker() {
  feedlane::Error error;
  const int exit_code = feedlane::run_worker<Dataset>(feedlane::worker_descriptor(), error);
  if (error) complain("worker", error);
  return exit_code;
}

/// The trainer's side: runs `run` and prints what it throws, or prints the usage or the complaint. Returns the exit code.
int run_trainer(Parsed parsed, const char* usage, const std::string& complaint, const std::function<int()>& run);

}  // namespace common
