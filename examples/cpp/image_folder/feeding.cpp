// SPDX-License-Identifier: Apache-2.0
// The loop over epochs and batches: counts images, adds up checksums.
#include "feeding.hpp"

#include <feedlane/feedlane.hpp>

#include <chrono>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>

#include "../common/checksum.hpp"
#include "../common/interrupt.hpp"
#include "../common/progress_bar.hpp"
#include "../common/worker_threads.hpp"
#include "image_dataset.hpp"

namespace images {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Counts what comes, and when.
class Counter {
 public:
  Counter(const Options& options, int64_t samples, Totals& totals)
      : options_(options), all_(samples * options.epochs), totals_(totals), bar_(all_, !options.quiet) {}

  void count(const feedlane::Batch& batch) {
    const auto rows = static_cast<int64_t>(batch.rows());
    if (totals_.images == 0) start_ = Clock::now();
    else totals_.timed += rows;
    totals_.images += rows;
    if (options_.checksum) add(batch);
    else touch(batch);
    totals_.checksum = sum_.value();
    totals_.seconds = since(start_);
    if (!bar_.due()) return;
    const double rate = totals_.seconds > 0 ? static_cast<double>(totals_.timed) / totals_.seconds : 0;
    char words[96];
    std::snprintf(words, sizeof words, "epoch %lld/%lld, %.0f images/s", static_cast<long long>(batch.epoch() + 1),
                  static_cast<long long>(options_.epochs), rate);
    bar_.show(std::min(totals_.images, all_), words);
  }

 private:
  void add(const feedlane::Batch& batch) {
    sum_.add(std::as_bytes(batch.indices()));
    for (size_t field = 0; field < batch.size(); field++) sum_.add(batch[field].bytes());
  }

  /// Reads a byte of every page, so that a rate is of batches that have come, not of news of them.
  void touch(const feedlane::Batch& batch) {
    constexpr size_t page = 4096;
    for (size_t field = 0; field < batch.size(); field++) {
      const std::span<const std::byte> bytes = batch[field].bytes();
      for (size_t at = 0; at < bytes.size(); at += page) touched_ = bytes[at];
    }
  }

  volatile std::byte touched_{};
  const Options& options_;
  const int64_t all_;
  Totals& totals_;
  common::ProgressBar bar_;
  common::Checksum sum_;
  Clock::time_point start_;
};

/// What the policies did to samples that failed, in words.
void tell_events(feedlane::Loader& loader) {
  while (const std::optional<feedlane_event> event = loader.event()) {
    const bool skipped = event->kind == FEEDLANE_EVENT_SAMPLE_SKIPPED;
    if (skipped || event->kind == FEEDLANE_EVENT_SAMPLE_SUBSTITUTED)
      std::fprintf(stderr, "image_folder: %s: %s\n", skipped ? "left out" : "another one taken", event->what.text);
  }
}

int32_t run_epoch(feedlane::Loader& loader, int64_t epoch, const common::WorkerThreads& threads, Counter& counter) {
  loader.start_epoch(epoch);
  for (;;) {
    if (threads.failed()) throw std::runtime_error("a worker thread has given up");
    if (common::interrupt_requested()) return FEEDLANE_INTERRUPTED;
    const std::optional<feedlane::Batch> batch = loader.next();
    if (batch) counter.count(*batch);
    else if (loader.outcome() == FEEDLANE_END) return FEEDLANE_OK;
  }
}

}  // namespace

int32_t feed(const Options& options, const Recipe& recipe, int64_t samples, Totals& totals) {
  const feedlane::Sampler order = feedlane::Sampler::random(samples, options.seed);
  const feedlane_dataset dataset = feedlane::dataset_of<ImageDataset>();
  const std::vector<std::byte> config = recipe.pack();
  const bool elsewhere = options.workers > 0 && options.start == feedlane::Start::spawn;
  feedlane::Loader loader({.sampler = &order,
                           .fields = image_fields(recipe),
                           .batch_size = options.batch,
                           .seed = options.seed,
                           .dataset = elsewhere ? nullptr : &dataset,
                           .workers = options.workers,
                           .start = options.start,
                           .keep_workers = options.workers > 0,
                           .worker_config = config,
                           .retries = 2,
                           .substitute = options.on_error == OnError::substitute,
                           .skip_budget = options.on_error == OnError::skip ? -1 : 0});
  const common::InterruptsLoader interrupts(loader);
  common::WorkerThreads threads(loader);
  if (options.workers > 0 && options.start == feedlane::Start::thread) threads.start(options.workers);
  int32_t status = FEEDLANE_OK;
  {
    Counter counter(options, samples, totals);
    for (int64_t epoch = 0; epoch < options.epochs && status == FEEDLANE_OK; epoch++)
      status = run_epoch(loader, epoch, threads, counter);
  }
  tell_events(loader);
  const feedlane_stats stats = loader.monitor().stats();
  totals.skipped = stats.skipped;
  totals.substituted = stats.substituted;
  return status;
}

}  // namespace images
