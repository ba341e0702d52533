// SPDX-License-Identifier: Apache-2.0
// The options and which of them go together.
#include "options.hpp"

#include <optional>
#include <utility>
#include <vector>

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
    "  --worker COMMAND          with --digest: start this command's words as workers, in any language\n"
    "  --feed PATH               with --digest: deliver the ten epochs to --consumers N (default 1) other programs "
    "that\n"
    "                            join at this Unix socket\n"
    "  --join PATH               with --digest: print the digest of the batches of another program's --feed\n"
    "  --help\n";

namespace {

std::string contradiction(const Options& options, bool about_workers) {
  if (options.sync && about_workers) return "--sync uses no loader: it goes with neither --workers nor --start";
  if (options.sync && options.digest) return "--digest uses a loader: it doesn't go with --sync";
  if (!options.digest && !(options.worker + options.feed + options.join).empty())
    return "--worker, --feed and --join go with --digest only";
  if (!options.join.empty() && (about_workers || !(options.worker + options.feed).empty()))
    return "--join takes another program's batches: it goes with neither --feed, --worker nor --workers";
  const bool has_workers = !options.sync && options.workers > 0;
  if (options.start != feedlane::Start::spawn && !has_workers)
    return "--start external, fork and thread need --workers 1 or more";
  if (options.kill_worker_at && (!has_workers || options.start == feedlane::Start::thread)) {
    return "--kill-worker-at-batch needs a worker process to kill";
  }
  return {};
}

}  // namespace

common::Parsed parse_options(int argc, char** argv, Options& options, std::string& complaint) {
  using feedlane::Start;
  std::optional<int32_t> workers;
  std::optional<Start> start;
  const std::vector<common::Option> table = {
      common::number("--workers", 0, 256, workers),
      common::choice<Start>(
          "--start",
          {{"spawn", Start::spawn}, {"external", Start::external}, {"fork", Start::fork}, {"thread", Start::thread}},
          start),
      common::flag("--sync", options.sync),
      common::number("--epochs", 1, 1000000, options.epochs),
      common::number<uint64_t>("--seed", 0, UINT64_MAX, options.seed),
      common::path("--data", options.data),
      common::path("--losses", options.losses),
      common::number("--kill-worker-at-batch", 0, INT64_MAX, options.kill_worker_at),
      common::flag("--quiet", options.quiet),
      common::flag("--digest", options.digest),
      common::path("--worker", options.worker),
      common::path("--feed", options.feed),
      common::number("--consumers", 1, 1000, options.consumers),
      common::path("--join", options.join)};
  const auto operand = [](const std::string&) { return false; };
  const auto finish = [&] {
    options.workers = workers.value_or(options.workers);
    options.start = start.value_or(options.start);
    return contradiction(options, workers || start);
  };
  return common::parse_command_line(argc, argv, table, operand, finish, complaint);
}

}  // namespace digits
