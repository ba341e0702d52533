// SPDX-License-Identifier: Apache-2.0
// Trains a small network on handwritten digits. The batches are made by worker processes: this very program, started
// again with a descriptor in its environment. Read run() for the trainer's side, digits_dataset.cpp for the worker's.
#include <feedlane.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "digits.hpp"
#include "digits_dataset.hpp"
#include "handles.hpp"
#include "interrupt.hpp"
#include "loader_source.hpp"
#include "network.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "sync_source.hpp"
#include "training.hpp"

namespace digits {
namespace {

constexpr int exit_failure = 1;
constexpr int exit_usage = 2;
constexpr int exit_interrupted = 130;  // what shells say of a program that Ctrl-C ended

// Fixed: which digits are held out and where the network starts are no matter of --seed.
constexpr uint64_t split_seed = 7;
constexpr uint64_t network_seed = 1;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

int refuse(const std::string& why, int exit_code) {
  std::fprintf(stderr, "digits_trainer: %s\n", why.c_str());
  return exit_code;
}

int work(int32_t fd) {
  auto error = initialised<feedlane_error>();
  const feedlane_dataset dataset = digits_dataset();
  const int32_t status = feedlane_worker_run(fd, &dataset, &error);
  if (status < 0) complain("worker", status, error);
  return status < 0 ? exit_failure : 0;
}

Sampler make_sampler(uint64_t seed) {
  auto error = initialised<feedlane_error>();
  auto config = initialised<feedlane_random_config>();
  config.length = train_count;
  config.seed = seed;
  feedlane_sampler* sampler = nullptr;
  const int32_t status = feedlane_sampler_random(&config, &sampler, &error);
  if (status < 0) complain("sampler", status, error);
  return Sampler(sampler);
}

std::unique_ptr<BatchSource> make_loader_source(const Options& options, const Sampler& sampler) {
  const auto fields = digits_fields();
  const feedlane_dataset dataset = digits_dataset();
  // Another process may have another working directory.
  std::error_code ignored;
  const std::filesystem::path directory = std::filesystem::absolute(options.data, ignored);
  const std::string worker_config = digits_worker_config(directory.string(), split_seed);

  auto config = initialised<feedlane_loader_config>();
  config.sampler = sampler.get();
  config.fields = fields.data();
  config.field_count = fields.size();
  config.batch_size = batch_size;
  config.has_seed = 1;
  config.seed = options.seed;
  config.workers = options.workers;
  config.worker_config = worker_config.data();
  config.worker_config_bytes = worker_config.size();
  if (options.workers == 0) {
    config.dataset = &dataset;  // inline: the same callbacks, in this process
  } else {
    config.start = options.external ? FEEDLANE_START_EXTERNAL : FEEDLANE_START_SPAWN;
    config.keep_workers = 1;
  }
  std::unique_ptr<LoaderSource> source = LoaderSource::create(config);
  if (source && options.kill_worker_at) source->kill_worker_at(*options.kill_worker_at);
  return source;
}

void report(const Options& options, const BatchSource& source, const TrainingResult& result) {
  if (!options.quiet) {
    print_training(result);
    if (source.loader() != nullptr) print_workers(source.loader(), result.seconds);
  }
  std::printf("test accuracy: %.3f\n", result.epochs.back().test.accuracy());
}

int run(const Options& options) {
  Digits digits;
  std::string why;
  if (!digits.open(options.data, split_seed, why)) return refuse(why, exit_failure);
  File losses;
  if (!options.losses.empty()) {
    losses.reset(std::fopen(options.losses.c_str(), "w"));
    if (!losses) return refuse(options.losses + ": can't be written", exit_failure);
  }

  Sampler sampler = make_sampler(options.seed);
  if (!sampler) return exit_failure;
  std::unique_ptr<BatchSource> source;
  if (options.sync) {
    source = std::make_unique<SyncSource>(std::move(sampler), digits, options.seed);
  } else {
    source = make_loader_source(options, sampler);
  }
  if (!source) return exit_failure;
  const int64_t batches = options.epochs * source->batches_per_epoch();
  if (options.kill_worker_at && *options.kill_worker_at >= batches) {
    return refuse("--kill-worker-at-batch: the run has " + std::to_string(batches) + " batches only", exit_usage);
  }

  install_interrupt_handler();
  Network network(network_seed);
  const HeldOut held_out(digits);
  TrainingResult result;
  int32_t status;
  {
    Progress progress(options.epochs, source->batches_per_epoch(), !options.quiet);
    status = train(*source, network, held_out, options.epochs, losses.get(), progress, result);
  }
  if (status == FEEDLANE_INTERRUPTED) {
    return refuse("interrupted after " + std::to_string(result.epochs.size()) + " epochs", exit_interrupted);
  }
  if (status != FEEDLANE_OK) return exit_failure;
  if (losses && std::fclose(losses.release()) != 0) return refuse(options.losses + ": can't be written", exit_failure);
  report(options, *source, result);
  return 0;
}

}  // namespace
}  // namespace digits

int main(int argc, char** argv) {
  // First of all: was this process started as a worker? Its arguments don't matter then.
  if (const int32_t fd = feedlane_worker_fd(); fd >= 0) return digits::work(fd);

  digits::Options options;
  options.data = DIGITS_DATA_DIR;
  std::string complaint;
  switch (digits::parse_options(argc, argv, options, complaint)) {
    case digits::Parsed::help:
      std::fputs(digits::usage, stdout);
      return 0;
    case digits::Parsed::wrong:
      return digits::refuse(complaint + "\n" + digits::usage, digits::exit_usage);
    case digits::Parsed::run:
      break;
  }
  return digits::run(options);
}
