// SPDX-License-Identifier: Apache-2.0
// Feeds a folder of JPEGs as image classifiers are trained on them. Read feeding.cpp for the trainer's side,
// image_dataset.cpp for the worker's.
#include <feedlane/feedlane.hpp>

#include <cstdio>
#include <filesystem>
#include <string>

#include "../common/interrupt.hpp"
#include "../common/program.hpp"
#include "feeding.hpp"
#include "folder.hpp"
#include "generate.hpp"
#include "image_dataset.hpp"
#include "options.hpp"

namespace images {
namespace {

void report(const Totals& totals, bool checksum) {
  std::printf("images: %lld, left out: %llu, substituted: %llu\n", static_cast<long long>(totals.images),
              static_cast<unsigned long long>(totals.skipped), static_cast<unsigned long long>(totals.substituted));
  if (checksum) std::printf("checksum: %016llx\n", static_cast<unsigned long long>(totals.checksum));
  const double rate = totals.seconds > 0 ? static_cast<double>(totals.timed) / totals.seconds : 0;
  std::printf("images/s: %.0f\n", rate);
}

int run(const Options& options) {
  if (!options.generate.empty()) {
    generate(options.generate, options.count, IMAGE_FOLDER_DATA_DIR, !options.quiet);
    return 0;
  }
  Recipe recipe;
  recipe.side = options.side;
  recipe.bytes = options.bytes;
  recipe.root = std::filesystem::absolute(options.folder).string();  // a worker may have another working directory
  const Folder folder(recipe.root);
  recipe.fingerprint = folder.fingerprint();
  if (!options.quiet) std::printf("%zu pictures in %zu classes\n", folder.size(), folder.classes().size());

  common::install_interrupt_handler();
  Totals totals;
  const int32_t status = feed(options, recipe, static_cast<int64_t>(folder.size()), totals);
  if (status == FEEDLANE_INTERRUPTED)
    return common::refuse("interrupted after " + std::to_string(totals.images) + " images", common::exit_interrupted);
  report(totals, options.checksum);
  return 0;
}

}  // namespace
}  // namespace images

int main(int argc, char** argv) {
  // First of all: was this process started as a worker? Its arguments don't matter then.
  if (feedlane::is_worker()) return common::run_worker<images::ImageDataset>();

  images::Options options;
  std::string complaint;
  const common::Parsed parsed = images::parse_options(argc, argv, options, complaint);
  return common::run_trainer(parsed, images::usage, complaint, [&] { return images::run(options); });
}
