// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <string_view>

#include "../common/arguments.hpp"

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

/// What an option wants of its value; empty when it is content.
std::string set_value(std::string_view name, std::string_view value, Options& o) {
  using common::set_number;
  using feedlane::Start;
  if (name == "--length") return set_number(value, 1, 1 << 24, o.files.length);
  if (name == "--batch") return set_number(value, 1, 65536, o.batch);
  if (name == "--epochs") return set_number(value, 1, 1000000, o.epochs);
  if (name == "--seed") return set_number(value, 0, INT64_MAX, o.seed);
  if (name == "--workers") return set_number(value, 0, 256, o.workers);
  if (name == "--save-every") return set_number(value, 1, INT64_MAX, o.save_every);
  if (name == "--die-at-batch") return set_number(value, 0, INT64_MAX, o.die_at);
  if (name == "--shards") return set_number(value, 1, 100000, o.shards);
  if (name == "--tokens") return set_number(value, 1, int64_t{1} << 32, o.tokens);
  if (name == "--token-bytes")
    return common::choose<size_t>(value, {{"2", 2}, {"4", 4}}, o.files.token_bytes) ? "" : "2 or 4";
  if (name == "--start")
    return common::choose(value, {{"spawn", Start::spawn}, {"fork", Start::fork}, {"thread", Start::thread}}, o.start)
               ? ""
               : "spawn, fork or thread";
  if (value.empty()) return "a path";
  (name == "--state" ? o.state : o.generate) = value;
  return {};
}

bool takes_value(std::string_view name) {
  for (const char* const known :
       {"--length", "--batch", "--epochs", "--seed", "--workers", "--save-every", "--die-at-batch", "--shards",
        "--tokens", "--token-bytes", "--start", "--state", "--generate"})
    if (name == known) return true;
  return false;
}

std::string contradiction(const Options& o) {
  if (o.generate.empty() && o.files.paths.empty()) return "no file was named";
  if (!o.generate.empty() && !o.files.paths.empty()) return "--generate reads no files: '" + o.files.paths[0] + "'";
  if (o.resume && o.state.empty()) return "--resume needs --state FILE";
  if (o.workers == 0 && o.start != feedlane::Start::spawn) return "--start needs --workers 1 or more";
  return {};
}

}  // namespace

Parsed parse_options(int argc, char** argv, Options& options, std::string& complaint) {
  common::Arguments arguments(argc, argv);
  while (arguments.advance()) {
    const std::string name(arguments.name());
    if (name == "--help") return Parsed::help;
    if (takes_value(name)) {
      const auto value = arguments.value();
      if (!value) return complaint = name + " needs a value", Parsed::wrong;
      const std::string wanted = set_value(name, *value, options);
      if (!wanted.empty()) return complaint = name + " '" + std::string(*value) + "': must be " + wanted, Parsed::wrong;
    } else if (name == "--resume" || name == "--quiet") {
      if (arguments.has_attached_value()) return complaint = name + " takes no value", Parsed::wrong;
      (name == "--resume" ? options.resume : options.quiet) = true;
    } else if (name.starts_with("-")) {
      return complaint = "unknown option '" + name + "'", Parsed::wrong;
    } else {
      options.files.paths.push_back(name);
    }
  }
  complaint = contradiction(options);
  return complaint.empty() ? Parsed::run : Parsed::wrong;
}

}  // namespace tokens
