// SPDX-License-Identifier: Apache-2.0
// A trainer whose workers are the installed program feedlane-image-folder, which decodes, crops, resizes, flips and normalises
// a folder of pictures. Replace the checksum by your training step.
#include <feedlane/feedlane.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "common/checksum.hpp"
#include "common/program.hpp"

namespace {

struct Options {
  std::string program = "feedlane-image-folder";
  std::string root;
  std::string list;
  int workers = 2;
  int64_t batch = 64;
  int64_t epochs = 2;
  uint64_t seed = 1;
  int64_t side = 224;
  bool skip = false;
};

const char* const usage =
    "Usage: feedlane-image-folder --list DIR > LIST\n"
    "       image_trainer [options] --root DIR LIST\n"
    "\n"
    "  --program PATH   the worker program (default: feedlane-image-folder)\n"
    "  --workers N      default: 2\n"
    "  --batch N        pictures in a batch (default: 64)\n"
    "  --epochs N       default: 2\n"
    "  --seed N         of order and augmentation (default: 1)\n"
    "  --side N         width and height of a sample (default: 224)\n"
    "  --skip           leave out pictures that can't be decoded\n"
    "  --help\n";

int train(const Options& options) {
  std::ifstream file(options.list, std::ios::binary);
  if (!file) throw std::runtime_error(options.list + ": can't be read");
  const std::vector<char> list{std::istreambuf_iterator<char>(file), {}};
  const auto samples = static_cast<int64_t>(std::count(list.begin(), list.end(), '\n'));

  const feedlane::Sampler order = feedlane::Sampler::random(samples, options.seed);
  feedlane::Loader loader(
      {.sampler = &order,
       .fields = {feedlane::field<float>("image", {3, options.side, options.side}), feedlane::field<int64_t>("label")},
       .batch_size = options.batch,
       .seed = options.seed,
       .workers = options.workers,
       .keep_workers = true,
       .argv = {options.program, "--root", options.root, "--train"},
       .worker_config = std::as_bytes(std::span(list)),
       .retries = 2,
       .skip_budget = options.skip ? -1 : 0});
  const auto began = std::chrono::steady_clock::now();
  common::Checksum sum;
  int64_t images = 0;
  for (int64_t epoch = 0; epoch < options.epochs; epoch++) {
    for (const feedlane::Batch& batch : loader) {
      images += static_cast<int64_t>(batch.rows());
      sum.add(batch["image"].bytes());
      sum.add(batch["label"].bytes());
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::printf("images: %lld, checksum: %016llx, images/s: %.0f\n", static_cast<long long>(images),
              static_cast<unsigned long long>(sum.value()), static_cast<double>(images) / took.count());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string complaint;
  const std::vector<common::Option> table = {common::path("--program", options.program),
                                             common::path("--root", options.root),
                                             common::number("--workers", 1, 256, options.workers),
                                             common::number("--batch", 1, 65536, options.batch),
                                             common::number("--epochs", 1, 1000000, options.epochs),
                                             common::number("--seed", 0, INT64_MAX, options.seed),
                                             common::number("--side", 1, 4096, options.side),
                                             common::flag("--skip", options.skip)};
  const auto operand = [&](const std::string& argument) {
    const bool is_first = options.list.empty();
    if (is_first) options.list = argument;
    return is_first;
  };
  const auto missing = [&]() -> std::string {
    if (options.list.empty()) return "LIST is missing";
    return options.root.empty() ? "--root is missing" : "";
  };
  const common::Parsed parsed = common::parse_command_line(argc, argv, table, operand, missing, complaint);
  return common::run_trainer(parsed, usage, complaint, [&] { return train(options); });
}
