// SPDX-License-Identifier: Apache-2.0
// The loop over epochs and batches: counts tokens, adds up the checksum, saves checkpoints.
#include "feeding.hpp"

#include <feedlane/feedlane.hpp>

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <stdexcept>

#include "../common/checksum.hpp"
#include "../common/interrupt.hpp"
#include "../common/progress_bar.hpp"
#include "../common/worker_threads.hpp"
#include "token_dataset.hpp"

namespace tokens {
namespace {

using Clock = std::chrono::steady_clock;

class Feeding {
 public:
  Feeding(const Options& options, feedlane::Loader& loader, Checkpoint& checkpoint, Totals& totals)
      : options_(options),
        loader_(loader),
        checkpoint_(checkpoint),
        totals_(totals),
        bar_(options.epochs * loader.length(), !options.quiet) {}

  int32_t run_epoch(const common::WorkerThreads& threads) {
    loader_.start_epoch(loader_.next_epoch());
    for (;;) {
      if (threads.failed()) throw std::runtime_error("a worker thread has given up");
      if (common::interrupt_requested()) return FEEDLANE_INTERRUPTED;
      const std::optional<feedlane::Batch> batch = loader_.next();
      if (batch) take(*batch);
      else if (loader_.outcome() == FEEDLANE_END) return FEEDLANE_OK;
    }
  }
  /// How far it has come: after the newest batch, which has been taken.
  void save() {
    checkpoint_.loader = loader_.state();
    checkpoint_.save(options_.state);
  }

 private:
  void take(const feedlane::Batch& batch) {
    if (checkpoint_.batches == options_.die_at) raise(SIGKILL);
    common::Checksum sum(checkpoint_.checksum);
    sum.add(batch[0].bytes());
    checkpoint_.checksum = sum.value();
    checkpoint_.batches++;
    count(batch);
    if (!options_.state.empty() && checkpoint_.batches % options_.save_every == 0) save();
  }
  void count(const feedlane::Batch& batch) {
    if (totals_.tokens == 0) began_ = Clock::now();
    totals_.tokens += static_cast<int64_t>(batch.rows() * options_.files.length);
    totals_.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    if (!bar_.due()) return;
    char words[96];
    std::snprintf(words, sizeof words, "epoch %lld/%lld, %.1f M tokens/s", static_cast<long long>(batch.epoch() + 1),
                  static_cast<long long>(options_.epochs),
                  totals_.seconds > 0 ? static_cast<double>(totals_.tokens) / totals_.seconds / 1e6 : 0);
    bar_.show(checkpoint_.batches, words);
  }

  const Options& options_;
  feedlane::Loader& loader_;
  Checkpoint& checkpoint_;
  Totals& totals_;
  common::ProgressBar bar_;
  Clock::time_point began_;
};

}  // namespace

int32_t feed(const Options& options, int64_t windows, Checkpoint& checkpoint, Totals& totals) {
  // Computed index by index: a billion windows take no more memory than ten.
  const feedlane::Sampler order =
      feedlane::Sampler::random({.length = windows, .seed = options.seed, .shuffle = feedlane::Shuffle::feistel});
  const feedlane_dataset dataset = feedlane::dataset_of<TokenDataset>();
  const std::vector<std::byte> config = options.files.pack();
  const bool elsewhere = options.workers > 0 && options.start == feedlane::Start::spawn;
  feedlane::LoaderOptions wanted{.sampler = &order,
                                 .fields = token_fields(options.files),
                                 .batch_size = options.batch,
                                 .drop_last = true,
                                 .dataset = elsewhere ? nullptr : &dataset,
                                 .workers = options.workers,
                                 .start = options.start,
                                 .keep_workers = options.workers > 0,
                                 .worker_config = config,
                                 .state = checkpoint.loader};
  if (checkpoint.loader.empty()) wanted.seed = options.seed;
  feedlane::Loader loader(wanted);
  const common::InterruptsLoader interrupts(loader);
  common::WorkerThreads threads(loader);
  if (options.workers > 0 && options.start == feedlane::Start::thread) threads.start(options.workers);
  Feeding feeding(options, loader, checkpoint, totals);
  int32_t status = FEEDLANE_OK;
  while (loader.next_epoch() < options.epochs && status == FEEDLANE_OK) status = feeding.run_epoch(threads);
  if (!options.state.empty() && totals.tokens > 0) feeding.save();
  return status;
}

}  // namespace tokens
