// SPDX-License-Identifier: Apache-2.0
// Parses the command line.
#include "options.hpp"

#include <getopt.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

namespace images {

const char* const usage =
    "Usage: feedlane-image-folder --list DIR\n"
    "       feedlane-image-folder [--root DIR] [OPTIONS]     as the worker program of a loader\n"
    "\n"
    "Decode the JPEG and PNG files of a folder, crop, resize, flip and normalise them into a loader's batches.\n"
    "The loader declares the fields \"image\", float32 or uint8 [3, height, width], and \"label\", int64.\n"
    "Its worker_config is the output of --list: one line per sample, with a label, a tab and a path.\n"
    "\n"
    "  --list DIR        Print the list of DIR, whose folders are the classes, in the order of torchvision's "
    "ImageFolder\n"
    "  --root DIR        Read relative paths of the list from this folder (default: the working folder)\n"
    "  --train           Crop at random (RandomResizedCrop); otherwise Resize and CenterCrop\n"
    "  --scale MIN,MAX   With --train, crop this share of the area (default: 0.08,1)\n"
    "  --ratio MIN,MAX   With --train, crop with this width / height (default: 0.75,1.3333)\n"
    "  --resize N        Without --train, resize the shorter side to N pixels before the crop (default: 256)\n"
    "  --flip P          Flip horizontally with this probability (default: 0.5 with --train, otherwise 0)\n"
    "  --mean R,G,B      Subtract these from float32 values of 0 to 1 (default: 0.485,0.456,0.406)\n"
    "  --std R,G,B       Then divide by these (default: 0.229,0.224,0.225)\n"
    "  --max-pixels N    Refuse larger pictures (default: 178956970)\n"
    "  --version         Print the version\n"
    "  --help            Print this help\n";

namespace {

enum Option {
  list_option = 256,
  root_option,
  train_option,
  scale_option,
  ratio_option,
  resize_option,
  flip_option,
  mean_option,
  std_option,
  max_pixels_option,
  version_option,
  help_option
};

constexpr option table[] = {{"list", required_argument, nullptr, list_option},
                            {"root", required_argument, nullptr, root_option},
                            {"train", no_argument, nullptr, train_option},
                            {"scale", required_argument, nullptr, scale_option},
                            {"ratio", required_argument, nullptr, ratio_option},
                            {"resize", required_argument, nullptr, resize_option},
                            {"flip", required_argument, nullptr, flip_option},
                            {"mean", required_argument, nullptr, mean_option},
                            {"std", required_argument, nullptr, std_option},
                            {"max-pixels", required_argument, nullptr, max_pixels_option},
                            {"version", no_argument, nullptr, version_option},
                            {"help", no_argument, nullptr, help_option},
                            {}};

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw std::runtime_error(what + ": " + why);
}

/// The value of the option that was parsed last.
struct Value {
  std::string name;
  std::string text;

  [[noreturn]] void refuse(const char* allowed) const { images::refuse(name + " " + text, allowed); }

  /// Numbers separated by commas. All must be finite and pass `is_allowed`.
  template <size_t Count, class Check>
  std::array<double, Count> numbers(const char* allowed, Check is_allowed) const {
    std::array<double, Count> found{};
    const char* at = text.data();
    const char* const end = at + text.size();
    for (size_t i = 0; i < Count; i++) {
      if (i > 0 && (at == end || *at++ != ',')) refuse(allowed);
      const auto [next, status] = std::from_chars(at, end, found[i]);
      if (status != std::errc() || !std::isfinite(found[i])) refuse(allowed);
      at = next;
    }
    if (at != end || !is_allowed(found)) refuse(allowed);
    return found;
  }
  Range range(const char* allowed) const {
    const auto [low, high] = numbers<2>(allowed, [](const auto& n) { return 0 < n[0] && n[0] <= n[1]; });
    return {low, high};
  }
  template <class Number>
  Number whole(Number most, const char* allowed) const {
    Number number = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (status != std::errc() || end != text.data() + text.size() || number < 1 || number > most) refuse(allowed);
    return number;
  }
};

void apply(int code, const Value& value, Options& o, bool& has_flip) {
  const auto any = [](const auto&) { return true; };
  const auto positive = [](const auto& n) { return n[0] > 0 && n[1] > 0 && n[2] > 0; };
  switch (code) {
    case list_option: o.mode = Options::Mode::list; [[fallthrough]];
    case root_option: o.root = value.text; break;
    case train_option: o.transform.train = true; break;
    case scale_option:
      o.transform.scale = value.range("must be two numbers with 0 < MIN <= MAX, such as 0.08,1");
      break;
    case ratio_option:
      o.transform.ratio = value.range("must be two numbers with 0 < MIN <= MAX, such as 0.75,1.3333");
      break;
    case resize_option: o.transform.resize = value.whole<uint32_t>(65536, "must be a number from 1 to 65536"); break;
    case flip_option:
      has_flip = true;
      o.transform.flip =
          value.numbers<1>("must be a number from 0 to 1", [](const auto& n) { return n[0] >= 0 && n[0] <= 1; })[0];
      break;
    case mean_option:
      o.normalises = true, o.mean = value.numbers<3>("must be three numbers, such as 0.485,0.456,0.406", any);
      break;
    case std_option:
      o.normalises = true,
      o.deviation = value.numbers<3>("must be three numbers above 0, such as 0.229,0.224,0.225", positive);
      break;
    case max_pixels_option:
      o.max_pixels = value.whole<uint64_t>(uint64_t{1} << 32, "must be a number from 1 to 4294967296");
      break;
    case version_option: o.mode = Options::Mode::version; break;
    default: o.mode = Options::Mode::help; break;
  }
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  bool has_flip = false;
  opterr = 0;
  for (int which = 0;;) {
    const int at = optind;
    const int code = getopt_long(argc, argv, "+:", table, &which);
    if (code == -1) break;
    if (code == ':') refuse(argv[optind - 1], "needs a value; see --help");
    if (code == '?') refuse(argv[at], "no such option, or it takes no value; see --help");
    apply(code, {std::string("--") + table[which].name, optarg == nullptr ? "" : optarg}, options, has_flip);
  }
  if (optind < argc) refuse(argv[optind], "unexpected argument; see --help");
  if (!has_flip && options.transform.train) options.transform.flip = 0.5;
  return options;
}

}  // namespace images
