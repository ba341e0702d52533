// SPDX-License-Identifier: Apache-2.0
// The options and which of them go together.
#include "options.hpp"

#include <vector>

namespace tokens {

const char* const usage =
    "Usage: token_shards [options] FILE...\n"
    "       token_shards --generate DIR [--shards N] [--tokens N] [--token-bytes 2|4]\n"
    "Feeds windows out of files of tokens, shuffled over all files, as language models are trained on them.\n"
    "\n"
    "  --length N          tokens of a window (default 1024); one more makes the targets\n"
    "  --token-bytes N     2, unsigned (default), or 4\n"
    "  --batch N           windows in a batch (default 32)\n"
    "  --epochs N          default 1\n"
    "  --seed N            of the order (default 1)\n"
    "  --workers N         how many (default 2); 0: read inline\n"
    "  --start MODE        who makes them: spawn (default), fork or thread\n"
    "  --state FILE        save there how far the run has come\n"
    "  --save-every N      batches (default 100)\n"
    "  --resume            go on from --state; the checksum is that of a run that was never interrupted\n"
    "  --die-at-batch N    SIGKILL this program when batch N, counted from 0 over all epochs, is here: to try "
    "--resume\n"
    "  --quiet             print the totals only\n"
    "  --generate DIR      write such files: random tokens\n"
    "  --shards N          how many (default 4)\n"
    "  --tokens N          in each, about (default 1048576)\n"
    "  --help\n";

namespace {

std::string contradiction(const Options& o) {
  if (o.generate.empty() && o.files.paths.empty()) return "no file was named";
  if (!o.generate.empty() && !o.files.paths.empty()) return "--generate reads no files: '" + o.files.paths[0] + "'";
  if (o.resume && o.state.empty()) return "--resume needs --state FILE";
  if (o.workers == 0 && o.start != feedlane::Start::spawn) return "--start needs --workers 1 or more";
  return {};
}

}  // namespace

common::Parsed parse_options(int argc, char** argv, Options& options, std::string& complaint) {
  using feedlane::Start;
  const std::vector<common::Option> table = {
      common::number("--length", 1, 1 << 24, options.files.length),
      common::choice<size_t>("--token-bytes", {{"2", 2}, {"4", 4}}, options.files.token_bytes),
      common::number("--batch", 1, 65536, options.batch),
      common::number("--epochs", 1, 1000000, options.epochs),
      common::number("--seed", 0, INT64_MAX, options.seed),
      common::number("--workers", 0, 256, options.workers),
      common::choice<Start>("--start", {{"spawn", Start::spawn}, {"fork", Start::fork}, {"thread", Start::thread}},
                            options.start),
      common::path("--state", options.state),
      common::number("--save-every", 1, INT64_MAX, options.save_every),
      common::flag("--resume", options.resume),
      common::number("--die-at-batch", 0, INT64_MAX, options.die_at),
      common::flag("--quiet", options.quiet),
      common::path("--generate", options.generate),
      common::number("--shards", 1, 100000, options.shards),
      common::number("--tokens", 1, int64_t{1} << 32, options.tokens)};
  const auto operand = [&](const std::string& argument) {
    options.files.paths.push_back(argument);
    return true;
  };
  return common::parse_command_line(
      argc, argv, table, operand, [&] { return contradiction(options); }, complaint);
}

}  // namespace tokens
