// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <cstdio>

#include "handles.hpp"

namespace digits {
namespace {

using ull = unsigned long long;

double milliseconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; }

}  // namespace

void print_training(const TrainingResult& result) {
  std::printf("%5s  %8s  %14s  %13s\n", "epoch", "loss", "train accuracy", "test accuracy");
  for (size_t epoch = 0; epoch < result.epochs.size(); epoch++) {
    const EpochResult& scores = result.epochs[epoch];
    std::printf("%5zu  %8.4f  %14.3f  %13.3f\n", epoch, scores.train.mean_loss(), scores.train.accuracy(),
                scores.test.accuracy());
  }
  std::printf("\nbatches/s: %.0f\n", static_cast<double>(result.batches) / result.seconds);
}

void print_workers(const feedlane_loader* loader, double seconds) {
  auto totals = initialised<feedlane_stats>();
  if (feedlane_loader_stats(loader, &totals) != FEEDLANE_OK) return;
  std::printf("waited for batches: %.1f %% of the time\n", milliseconds(totals.wait_ns) / (seconds * 1e3) * 100);
  std::printf("restarts: %llu\n", static_cast<ull>(totals.restarts));
  auto stats = initialised<feedlane_worker_stats>();
  for (int32_t worker = 0; feedlane_loader_worker_stats(loader, worker, &stats) == FEEDLANE_OK; worker++) {
    if (worker == 0) {
      std::printf("\n%6s  %8s  %7s  %8s  %9s  %9s  %8s\n", "worker", "pid", "tasks", "samples", "work ms", "wait ms",
                  "restarts");
    }
    std::printf("%6d  %8lld  %7llu  %8llu  %9.1f  %9.1f  %8d\n", worker, static_cast<long long>(stats.pid),
                static_cast<ull>(stats.tasks), static_cast<ull>(stats.samples), milliseconds(stats.work_ns),
                milliseconds(stats.wait_ns), stats.generation);
  }
  std::printf("\n");
}

}  // namespace digits
