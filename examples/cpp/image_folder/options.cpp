// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <string_view>
#include <utility>

#include "../common/arguments.hpp"

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

/// What an option wants of its value; empty when it is content.
std::string set_value(std::string_view name, std::string_view value, Options& o) {
  using feedlane::Start;
  if (name == "--workers") return common::set_number(value, 0, 256, o.workers);
  if (name == "--batch") return common::set_number(value, 1, 65536, o.batch);
  if (name == "--epochs") return common::set_number(value, 1, 1000000, o.epochs);
  if (name == "--seed") return common::set_number(value, 0, INT64_MAX, o.seed);
  if (name == "--side") return common::set_number(value, 1, 4096, o.side);
  if (name == "--count") return common::set_number(value, 1, 100000000, o.count);
  if (name == "--start")
    return common::choose(value, {{"spawn", Start::spawn}, {"fork", Start::fork}, {"thread", Start::thread}}, o.start)
               ? ""
               : "spawn, fork or thread";
  if (name == "--on-error")
    return common::choose(value,
                          {{"raise", OnError::raise}, {"skip", OnError::skip}, {"substitute", OnError::substitute}},
                          o.on_error)
               ? ""
               : "raise, skip or substitute";
  if (value.empty()) return "a path";
  o.generate = value;
  return {};
}

bool is_flag(std::string_view name) { return name == "--uint8" || name == "--checksum" || name == "--quiet"; }

bool takes_value(std::string_view name) {
  for (const char* const known :
       {"--workers", "--batch", "--epochs", "--seed", "--side", "--count", "--start", "--on-error", "--generate"})
    if (name == known) return true;
  return false;
}

std::string contradiction(const Options& o) {
  if (o.generate.empty() && o.folder.empty()) return "no folder was named";
  if (!o.generate.empty() && !o.folder.empty()) return "--generate makes one folder; '" + o.folder + "' is another";
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
    } else if (is_flag(name)) {
      if (arguments.has_attached_value()) return complaint = name + " takes no value", Parsed::wrong;
      (name == "--uint8" ? options.bytes : name == "--quiet" ? options.quiet : options.checksum) = true;
    } else if (name.starts_with("-") || !options.folder.empty()) {
      return complaint = "unknown option '" + name + "'", Parsed::wrong;
    } else {
      options.folder = name;
    }
  }
  complaint = contradiction(options);
  return complaint.empty() ? Parsed::run : Parsed::wrong;
}

}  // namespace images
