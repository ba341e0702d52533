// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <string_view>
#include <utility>

#include "../common/arguments.hpp"

namespace digits {

const char* const usage =
    "Usage: digits_trainer [options]\n"
    "Trains a small network on handwritten digits that workers decode into shared memory.\n"
    "\n"
    "  --workers N               how many (default 2); 0: decode inline, in the trainer\n"
    "  --start MODE              who makes them: spawn (default), the library starts this program again; external,\n"
    "                            this program starts itself again; fork, the library forks it; thread, they are\n"
    "                            threads of the trainer: its pid is theirs\n"
    "  --sync                    no loader at all: a plain loop over the same samples, to compare with\n"
    "  --epochs N                default 60\n"
    "  --seed N                  of order and augmentation (default 1)\n"
    "  --data DIR                where the two optdigits files are\n"
    "  --losses FILE             write a line for each epoch: its number and its mean loss as a hexadecimal float\n"
    "  --kill-worker-at-batch N  SIGKILL a worker process when batch N, counted from 0 over all epochs, is here:\n"
    "                            shows that the run recovers, with the same losses to the last bit\n"
    "  --quiet                   print the test accuracy only\n"
    "  --digest                  no training: print the digest of ten epochs, the same in every language's trainer;\n"
    "                            made by --workers forked processes\n"
    "  --help\n";

namespace {

constexpr int64_t most_workers = 256;
constexpr int64_t most_epochs = 1000000;

bool parse_start(std::string_view text, feedlane::Start& out) {
  using feedlane::Start;
  for (const auto& [name, start] : {std::pair("spawn", Start::spawn), std::pair("external", Start::external),
                                    std::pair("fork", Start::fork), std::pair("thread", Start::thread)}) {
    if (text != name) continue;
    out = start;
    return true;
  }
  return false;
}

/// What an option wants of its value; empty when it is content.
std::string set_value(std::string_view name, std::string_view value, Options& options, bool& about_workers) {
  int64_t number = 0;
  if (name == "--workers") {
    about_workers = true;
    if (!common::parse_number<int64_t>(value, 0, most_workers, number)) return "a number from 0 to 256";
    options.workers = static_cast<int32_t>(number);
  } else if (name == "--start") {
    about_workers = true;
    if (!parse_start(value, options.start)) return "spawn, external, fork or thread";
  } else if (name == "--epochs") {
    if (!common::parse_number<int64_t>(value, 1, most_epochs, options.epochs)) return "a number from 1 to 1000000";
  } else if (name == "--seed") {
    if (!common::parse_number<uint64_t>(value, 0, UINT64_MAX, options.seed)) return "a number from 0 to 2^64 - 1";
  } else if (name == "--kill-worker-at-batch") {
    if (!common::parse_number<int64_t>(value, 0, INT64_MAX, number)) return "a number from 0";
    options.kill_worker_at = number;
  } else {
    if (value.empty()) return "a path";
    (name == "--data" ? options.data : options.losses) = value;
  }
  return {};
}

bool takes_value(std::string_view name) {
  return name == "--workers" || name == "--start" || name == "--epochs" || name == "--seed" || name == "--data" ||
         name == "--losses" || name == "--kill-worker-at-batch";
}

std::string contradiction(const Options& options, bool about_workers) {
  if (options.sync && about_workers) return "--sync uses no loader: it goes with neither --workers nor --start";
  if (options.sync && options.digest) return "--digest uses a loader: it doesn't go with --sync";
  const bool has_workers = !options.sync && options.workers > 0;
  if (options.start != feedlane::Start::spawn && !has_workers)
    return "--start external, fork and thread need --workers 1 or more";
  if (options.kill_worker_at && (!has_workers || options.start == feedlane::Start::thread)) {
    return "--kill-worker-at-batch needs a worker process to kill";
  }
  return {};
}

}  // namespace

Parsed parse_options(int argc, char** argv, Options& options, std::string& complaint) {
  common::Arguments arguments(argc, argv);
  bool about_workers = false;
  while (arguments.advance()) {
    const std::string name(arguments.name());
    if (takes_value(name)) {
      const auto value = arguments.value();
      if (!value) return complaint = name + " needs a value", Parsed::wrong;
      const std::string wanted = set_value(name, *value, options, about_workers);
      if (!wanted.empty()) return complaint = name + " '" + std::string(*value) + "': must be " + wanted, Parsed::wrong;
      continue;
    }
    if (name != "--help" && name != "--sync" && name != "--quiet" && name != "--digest") {
      return complaint = "unknown option '" + name + "'", Parsed::wrong;
    }
    if (arguments.has_attached_value()) return complaint = name + " takes no value", Parsed::wrong;
    if (name == "--help") return Parsed::help;
    (name == "--sync" ? options.sync : name == "--quiet" ? options.quiet : options.digest) = true;
  }
  complaint = contradiction(options, about_workers);
  return complaint.empty() ? Parsed::run : Parsed::wrong;
}

}  // namespace digits
