// SPDX-License-Identifier: Apache-2.0
// The options and which of them go together.
#include "options.hpp"

#include <utility>
#include <vector>

namespace images {

const char* const usage =
    "Usage: image_folder [options] DIR\n"
    "       image_folder --generate DIR [--count N]\n"
    "Feeds the JPEGs of DIR/CLASS/ as image classifiers are trained on them: random resized crop, flip, "
    "normalisation.\n"
    "\n"
    "  --workers N         how many (default 2); 0: decode inline\n"
    "  --start MODE        who makes them: spawn (default), fork or thread\n"
    "  --batch N           pictures in a batch (default 64)\n"
    "  --epochs N          default 2\n"
    "  --seed N            of order and augmentation (default 1)\n"
    "  --side N            width and height of a sample (default 224)\n"
    "  --uint8             samples are bytes, not normalised; default float32\n"
    "  --on-error POLICY   of pictures that can't be decoded: raise (default), skip or substitute another one\n"
    "  --checksum          look at every byte of every batch, print what they add up to\n"
    "  --quiet             print the totals only\n"
    "  --generate DIR      make such a folder: handwritten digits as photographs of about 500x375\n"
    "  --count N           of how many (default 1000)\n"
    "  --help\n";

namespace {

std::string contradiction(const Options& o) {
  if (o.generate.empty() && o.folder.empty()) return "no folder was named";
  if (!o.generate.empty() && !o.folder.empty()) return "--generate makes one folder; '" + o.folder + "' is another";
  if (o.workers == 0 && o.start != feedlane::Start::spawn) return "--start needs --workers 1 or more";
  return {};
}

}  // namespace

common::Parsed parse_options(int argc, char** argv, Options& options, std::string& complaint) {
  using feedlane::Start;
  const std::vector<common::Option> table = {
      common::number("--workers", 0, 256, options.workers),
      common::choice<Start>("--start", {{"spawn", Start::spawn}, {"fork", Start::fork}, {"thread", Start::thread}},
                            options.start),
      common::number("--batch", 1, 65536, options.batch),
      common::number("--epochs", 1, 1000000, options.epochs),
      common::number("--seed", 0, INT64_MAX, options.seed),
      common::number("--side", 1, 4096, options.side),
      common::flag("--uint8", options.bytes),
      common::choice<OnError>("--on-error",
                              {{"raise", OnError::raise}, {"skip", OnError::skip}, {"substitute", OnError::substitute}},
                              options.on_error),
      common::flag("--checksum", options.checksum),
      common::flag("--quiet", options.quiet),
      common::path("--generate", options.generate),
      common::number("--count", 1, 100000000, options.count)};
  const auto operand = [&](const std::string& argument) {
    const bool is_first = options.folder.empty();
    if (is_first) options.folder = argument;
    return is_first;
  };
  return common::parse_command_line(
      argc, argv, table, operand, [&] { return contradiction(options); }, complaint);
}

}  // namespace images
