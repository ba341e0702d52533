// SPDX-License-Identifier: Apache-2.0
// Prints the tables of epochs and workers.
#include "report.hpp"

#include <unistd.h>

#include <cstdio>
#include <vector>

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

void print_workers(const feedlane::Loader& loader, double seconds) {
  const feedlane::Monitor monitor = loader.monitor();
  const feedlane_stats totals = monitor.stats();
  std::printf("waited for batches: %.1f %% of the time\n", milliseconds(totals.wait_ns) / (seconds * 1e3) * 100);
  std::printf("restarts: %llu\n", static_cast<ull>(totals.restarts));
  const std::vector<feedlane_worker_stats> workers = monitor.worker_stats();
  if (!workers.empty()) {
    std::printf("\n%6s  %8s  %7s  %8s  %9s  %9s  %8s\n", "worker", "pid", "tasks", "samples", "work ms", "wait ms",
                "restarts");
  }
  bool threads = false;
  for (size_t id = 0; id < workers.size(); id++) {
    const feedlane_worker_stats& worker = workers[id];
    threads = threads || worker.pid == getpid();
    std::printf("%6zu  %8lld  %7llu  %8llu  %9.1f  %9.1f  %8d\n", id, static_cast<long long>(worker.pid),
                static_cast<ull>(worker.tasks), static_cast<ull>(worker.samples), milliseconds(worker.work_ns),
                milliseconds(worker.wait_ns), worker.generation);
  }
  if (threads) std::printf("workers are threads: the pid is the trainer's own\n");
  std::printf("\n");
}

}  // namespace digits
