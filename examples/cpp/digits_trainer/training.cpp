// SPDX-License-Identifier: Apache-2.0
// The training loop and its evaluation.
#include "training.hpp"

#include <chrono>

namespace digits {
namespace {

/// Large steps at first, small ones later: by epoch alone, so that a longer run begins like a shorter one.
constexpr float first_rate = 0.2f;
constexpr float decay = 0.96f;

int32_t train_epoch(BatchSource& source, Network& network, int64_t epoch, float rate, Progress& progress, Score& score,
                    int64_t& batches) {
  source.begin(epoch);
  Batch batch;
  int64_t done = 0;
  int32_t status;
  while ((status = source.next(batch)) == FEEDLANE_OK) {
    score.add(network.learn(batch.images.data(), batch.labels.data(), batch.labels.size(), rate));
    batches++;
    progress.show(epoch, ++done, score.mean_loss());
  }
  return status == FEEDLANE_END ? FEEDLANE_OK : status;
}

}  // namespace

HeldOut::HeldOut(const Digits& digits) : images(held_out_count * pixels), labels(held_out_count) {
  for (size_t i = 0; i < held_out_count; i++) digits.decode_held_out(i, &images[i * pixels], &labels[i]);
}

int32_t train(BatchSource& source, Network& network, const HeldOut& held_out, int64_t epochs, std::FILE* losses,
              Progress& progress, TrainingResult& result) {
  using Clock = std::chrono::steady_clock;
  float rate = first_rate;
  for (int64_t epoch = 0; epoch < epochs; epoch++) {
    EpochResult scores;
    const Clock::time_point start = Clock::now();
    const int32_t status = train_epoch(source, network, epoch, rate, progress, scores.train, result.batches);
    result.seconds += std::chrono::duration<double>(Clock::now() - start).count();
    if (status != FEEDLANE_OK) return status;
    scores.test = network.evaluate(held_out.images.data(), held_out.labels.data(), held_out_count);
    result.epochs.push_back(scores);
    // "%a" keeps every bit, so that two runs can be compared exactly.
    if (losses != nullptr) std::fprintf(losses, "%lld %a\n", static_cast<long long>(epoch), scores.train.mean_loss());
    rate *= decay;
  }
  return FEEDLANE_OK;
}

}  // namespace digits
