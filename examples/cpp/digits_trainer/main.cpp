// SPDX-License-Identifier: Apache-2.0
// Trains a small network on handwritten digits. The batches are made by workers: as a rule this very program, started
// again with a descriptor in its environment. Read run() for the trainer's side, digits_dataset.cpp for the worker's.
#include <feedlane/feedlane.hpp>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "../common/interrupt.hpp"
#include "../common/program.hpp"
#include "digest.hpp"
#include "digits.hpp"
#include "digits_dataset.hpp"
#include "loader_source.hpp"
#include "network.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "sync_source.hpp"
#include "training.hpp"

namespace digits {
namespace {

// Fixed: which digits are held out and where the network starts are no matter of --seed.
constexpr uint64_t split_seed = 7;
constexpr uint64_t network_seed = 1;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

std::unique_ptr<BatchSource> make_loader_source(const Options& options, const feedlane::Sampler& sampler) {
  const feedlane_dataset dataset = feedlane::dataset_of<DigitsDataset>();
  // Another process may have another working directory.
  std::error_code ignored;
  const std::filesystem::path directory = std::filesystem::absolute(options.data, ignored);
  const std::string worker_config = digits_worker_config(directory.string(), split_seed);

  feedlane::LoaderOptions wanted{.sampler = &sampler,
                                 .fields = digits_fields(),
                                 .batch_size = batch_size,
                                 .seed = options.seed,
                                 .workers = options.workers,
                                 .start = options.start,
                                 .keep_workers = options.workers > 0,
                                 .worker_config = std::as_bytes(std::span(worker_config))};
  // Other workers are programs of their own: there main() calls run_worker.
  const bool in_this_program =
      options.workers == 0 || options.start == feedlane::Start::fork || options.start == feedlane::Start::thread;
  if (in_this_program) wanted.dataset = &dataset;
  auto source = std::make_unique<LoaderSource>(wanted);
  if (options.kill_worker_at) source->kill_worker_at(*options.kill_worker_at);
  return source;
}

void report(const Options& options, const BatchSource& source, const TrainingResult& result) {
  if (!options.quiet) {
    print_training(result);
    if (source.loader() != nullptr) print_workers(*source.loader(), result.seconds);
  }
  std::printf("test accuracy: %.3f\n", result.epochs.back().test.accuracy());
}

int run(const Options& options) {
  if (options.digest) {
    run_digest(options);
    return 0;
  }
  Digits digits;
  std::string why;
  if (!digits.open(options.data, split_seed, why)) return common::refuse(why, common::exit_failure);
  File losses;
  if (!options.losses.empty()) {
    losses.reset(std::fopen(options.losses.c_str(), "w"));
    if (!losses) return common::refuse(options.losses + ": can't be written", common::exit_failure);
  }

  auto sampler = feedlane::Sampler::random(train_count, options.seed);
  std::unique_ptr<BatchSource> source;
  if (options.sync) {
    source = std::make_unique<SyncSource>(std::move(sampler), digits, options.seed);
  } else {
    source = make_loader_source(options, sampler);
  }
  const int64_t batches = options.epochs * source->batches_per_epoch();
  if (options.kill_worker_at && *options.kill_worker_at >= batches) {
    return common::refuse("--kill-worker-at-batch: the run has " + std::to_string(batches) + " batches only",
                          common::exit_usage);
  }

  common::install_interrupt_handler();
  Network network(network_seed);
  const HeldOut held_out(digits);
  TrainingResult result;
  int32_t status;
  {
    Progress progress(options.epochs, source->batches_per_epoch(), !options.quiet);
    status = train(*source, network, held_out, options.epochs, losses.get(), progress, result);
  }
  if (status == FEEDLANE_INTERRUPTED) {
    return common::refuse("interrupted after " + std::to_string(result.epochs.size()) + " epochs",
                          common::exit_interrupted);
  }
  if (losses && std::fclose(losses.release()) != 0)
    return common::refuse(options.losses + ": can't be written", common::exit_failure);
  report(options, *source, result);
  return 0;
}

}  // namespace
}  // namespace digits

int main(int argc, char** argv) {
  // First of all: was this process started as a worker? "--digest" is for trainers in other languages; no other argument
  // matters then.
  if (feedlane::is_worker()) {
    const bool is_digest = argc > 1 && std::strcmp(argv[1], "--digest") == 0;
    return is_digest ? digits::run_digest_worker() : common::run_worker<digits::DigitsDataset>();
  }

  digits::Options options;
  options.data = DIGITS_DATA_DIR;
  std::string complaint;
  const common::Parsed parsed = digits::parse_options(argc, argv, options, complaint);
  return common::run_trainer(parsed, digits::usage, complaint, [&] { return digits::run(options); });
}
