// SPDX-License-Identifier: Apache-2.0
// Batches from the machine's feeder, steps with the other ranks, checkpoints and what is printed.
#include "training.hpp"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <stdexcept>
#include <string>

#include "../common/replace_file.hpp"
#include "../digits_trainer/digits_dataset.hpp"

namespace mpi_digits {
namespace {

constexpr uint64_t network_seed = 1;
// Large steps at first, small ones later: by epoch alone, so that a longer run begins like a shorter one.
constexpr double first_rate = 0.2;
constexpr double decay = 0.94;

File open_to_write(const std::string& path) {
  File file(std::fopen(path.c_str(), "w"));
  if (!file) throw std::runtime_error(path + ": can't be written");
  return file;
}

}  // namespace

Training::Training(const Options& options, const Ranks& ranks, feedlane::Loader& loader,
                   const digits::HeldOut& held_out, const std::optional<Checkpoint>& checkpoint)
    : options_(options), ranks_(ranks), loader_(loader), held_out_(held_out), network_(network_seed) {
  if (checkpoint) {
    progress_ = checkpoint->progress;
    set_network_values(network_, checkpoint->network);
    // The first rank carries on what all ranks had counted.
    if (!ranks_.is_first()) std::ranges::fill(progress_.trained, 0);
  }
  if (!options_.losses.empty() && ranks_.is_first()) losses_ = open_to_write(options_.losses);
  if (!options_.samples.empty()) samples_ = open_to_write(options_.samples + "/rank" + std::to_string(ranks_.rank()));
}

void Training::run() {
  if (ranks_.is_first()) {
    std::printf("%5s  %8s  %14s  %13s  %7s  %12s  %8s  %8s\n", "epoch", "loss", "train accuracy", "test accuracy",
                "batches", "samples once", "left out", "repeated");
  }
  for (; progress_.epoch < options_.epochs; progress_.epoch++) {
    if (run_epoch() == Outcome::stopped) {
      if (ranks_.is_first()) std::printf("stopped after %" PRId64 " batches\n", progress_.batches);
      return;
    }
    report_epoch();
    progress_.batches_of_epoch = 0;
    progress_.score = {};
    std::ranges::fill(progress_.trained, 0);
  }
  if (ranks_.is_first()) std::printf("test accuracy: %.3f\n", accuracy_);
}

Training::Outcome Training::run_epoch() {
  loader_.start_epoch(progress_.epoch);
  for (;;) {
    const std::optional<feedlane::Batch> batch = next_batch();
    // A machine may have one batch more than another when the rest of an epoch was divided anew.
    if (!ranks_.all(batch.has_value())) return Outcome::epoch_over;
    if (options_.kill_at == progress_.batches && is_to_be_killed()) raise(SIGKILL);
    learn(*batch);
    const bool stops = options_.stop_at == progress_.batches;
    const bool is_due = options_.save_every > 0 && progress_.batches % options_.save_every == 0;
    if (is_due || (stops && !options_.save.empty())) save(*batch);
    if (stops) return Outcome::stopped;
  }
}

bool Training::is_to_be_killed() const {
  return options_.kill_rank == ranks_.rank() || options_.kill_machine == ranks_.machine();
}

std::optional<feedlane::Batch> Training::next_batch() {
  for (;;) {
    feedlane::Error error;
    std::optional<feedlane::Batch> batch = loader_.next(std::chrono::nanoseconds::max(), error);
    if (loader_.outcome() == FEEDLANE_INTERRUPTED) continue;  // a signal, a stop and continue for one
    if (error) throw error;
    return batch;
  }
}

void Training::learn(const feedlane::Batch& batch) {
  const double rate = first_rate * std::pow(decay, static_cast<double>(progress_.epoch));
  progress_.score.add(network_.learn(batch[digits::image_field].as<const float>(),
                                     batch[digits::label_field].as<const int64_t>(), rate,
                                     [this](std::span<double> values) { ranks_.sum(values); }));
  for (const int64_t index : batch.indices()) progress_.trained[static_cast<size_t>(index)]++;
  write_samples(batch);
  progress_.batches++;
  progress_.batches_of_epoch++;
}

void Training::write_samples(const feedlane::Batch& batch) {
  if (!samples_) return;
  std::fprintf(samples_.get(), "%" PRId64 " %" PRId64, progress_.epoch, progress_.batches);
  for (const int64_t index : batch.indices()) std::fprintf(samples_.get(), " %" PRId64, index);
  std::fprintf(samples_.get(), "\n");
  std::fflush(samples_.get());  // a killed rank has written what it has trained on
}

void Training::save(const feedlane::Batch& batch) {
  Checkpoint checkpoint{progress_, options_.global_batch, options_.seed, {}, {}};
  checkpoint.progress.trained = trained_by_all();
  if (!ranks_.is_first()) return;
  // The networks of all ranks are equal, and with Share::deal the state is the one after the round of all ranks.
  checkpoint.network = network_values(network_);
  checkpoint.loader = loader_.state(batch);
  common::replace_file(options_.save, checkpoint.bytes());
}

std::vector<int64_t> Training::trained_by_all() const {
  std::vector<int64_t> counts = progress_.trained;
  ranks_.sum(std::span(counts));
  return counts;
}

void Training::report_epoch() {
  const std::vector<int64_t> counts = trained_by_all();
  if (!ranks_.is_first()) return;
  const digits::Score& train = progress_.score;
  const digits::Score test = network_.evaluate(held_out_.images, held_out_.labels);
  accuracy_ = test.accuracy();
  const auto once = std::ranges::count(counts, 1), left_out = std::ranges::count(counts, 0);
  std::printf("%5" PRId64 "  %8.4f  %14.3f  %13.3f  %7" PRId64 "  %12td  %8td  %8td\n", progress_.epoch,
              train.mean_loss(), train.accuracy(), accuracy_, progress_.batches_of_epoch, once, left_out,
              std::ssize(counts) - once - left_out);
  std::fflush(stdout);
  // "%a" keeps every bit.
  if (losses_) std::fprintf(losses_.get(), "%" PRId64 " %a\n", progress_.epoch, train.mean_loss());
}

}  // namespace mpi_digits
