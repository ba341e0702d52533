// SPDX-License-Identifier: Apache-2.0
// Feeds windows of tokens out of mapped files, and goes on exactly where it was after any end. Read feeding.cpp for the
// trainer's side, token_dataset.cpp and corpus.cpp for the worker's.
#include <feedlane/feedlane.hpp>

#include <cstdio>
#include <filesystem>
#include <string>

#include "../common/interrupt.hpp"
#include "../common/program.hpp"
#include "checkpoint.hpp"
#include "corpus.hpp"
#include "feeding.hpp"
#include "generate.hpp"
#include "options.hpp"
#include "token_dataset.hpp"

namespace tokens {
namespace {

/// Where to begin. Throws if that was another run.
Checkpoint where_to_begin(const Options& options, const Corpus& corpus) {
  Checkpoint fresh;
  fresh.corpus = corpus.fingerprint();
  fresh.batch_size = options.batch;
  if (!options.resume) return fresh;
  Checkpoint found = Checkpoint::read(options.state);
  if (found.corpus != fresh.corpus) throw std::runtime_error(options.state + ": is of other files or another --length");
  if (found.batch_size != fresh.batch_size)
    throw std::runtime_error(options.state + ": is of --batch " + std::to_string(found.batch_size));
  return found;
}

int run(Options& options) {
  if (!options.generate.empty()) {
    generate(options.generate, options.shards, options.tokens, options.files.token_bytes);
    return 0;
  }
  // A worker may have another working directory.
  for (std::string& path : options.files.paths) path = std::filesystem::absolute(path).string();
  const Corpus corpus(options.files);
  Checkpoint checkpoint = where_to_begin(options, corpus);
  if (!options.quiet) {
    std::printf("%zu windows in %zu files\n", corpus.size(), options.files.paths.size());
    if (options.resume) std::printf("resumed after %lld batches\n", static_cast<long long>(checkpoint.batches));
  }
  common::install_interrupt_handler();
  Totals totals;
  const int32_t status = feed(options, static_cast<int64_t>(corpus.size()), checkpoint, totals);
  if (status == FEEDLANE_INTERRUPTED) {
    const std::string done = "interrupted after " + std::to_string(checkpoint.batches) + " batches";
    return common::refuse(options.state.empty() ? done : done + ": --resume goes on", common::exit_interrupted);
  }
  std::printf("batches: %lld\nchecksum: %016llx\n", static_cast<long long>(checkpoint.batches),
              static_cast<unsigned long long>(checkpoint.checksum));
  std::printf("tokens/s: %.0f\n", totals.seconds > 0 ? static_cast<double>(totals.tokens) / totals.seconds : 0);
  return 0;
}

}  // namespace
}  // namespace tokens

int main(int argc, char** argv) {
  // First of all: was this process started as a worker? Its arguments don't matter then.
  if (feedlane::is_worker()) return common::run_worker<tokens::TokenDataset>();

  tokens::Options options;
  std::string complaint;
  const common::Parsed parsed = tokens::parse_options(argc, argv, options, complaint);
  return common::run_trainer(parsed, tokens::usage, complaint, [&] { return tokens::run(options); });
}
