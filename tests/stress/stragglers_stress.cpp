// SPDX-License-Identifier: Apache-2.0
// 3. Dispatch: 400 samples that sleep, one of them 50 times as long; 4 workers, batches of 1. Prints how long an epoch takes
// beside the shortest time that any dispatch could take; checks only that every batch comes once, where it belongs. Times
// are looked at by people.
#include <feedlane.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include "support/api.hpp"

namespace {

constexpr std::int64_t samples = 400;
constexpr std::int64_t straggler = 100;
constexpr int workers = 4;
constexpr double nap_ms = 5;

double nap_of(std::int64_t index) { return index == straggler ? 50 * nap_ms : nap_ms; }

double now_ms() {
  timespec t{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

std::int32_t get(void*, const feedlane_row* row, feedlane_error*) {
  std::memcpy(row->fields[0], &row->index, sizeof row->index);
  const auto ns = static_cast<std::int64_t>(nap_of(row->index) * 1e6);
  timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
  while (::nanosleep(&t, &t) != 0) continue;
  return 0;
}

// The earliest free worker takes the next sample, once the window lets it: sample i waits for the yield of i - window if
// batches come in order, else only for a free worker.
double ideal_ms(std::int64_t window, bool in_order) {
  std::array<double, workers> free{};
  std::vector<double> yielded(samples);
  double last = 0;
  for (std::int64_t i = 0; i < samples; i++) {
    double& worker = *std::min_element(free.begin(), free.end());
    double start = worker;
    if (in_order && i >= window) start = std::max(start, yielded[static_cast<std::size_t>(i - window)]);
    worker = start + nap_of(i);
    last = std::max(last, worker);
    yielded[static_cast<std::size_t>(i)] =
        std::max(worker, i > 0 && in_order ? yielded[static_cast<std::size_t>(i - 1)] : 0);
  }
  return last;
}

[[noreturn]] void die(const char* what, const feedlane_error& e) {
  std::fprintf(stderr, "%s: %s\n", what, e.text);
  std::exit(1);
}

double epoch_ms(bool in_order, bool round_robin, int prefetch) {
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  feedlane_sampler* sampler = nullptr;
  if (feedlane::test::sequential_sampler(samples, &sampler, &e) != 0) die("sampler", e);
  feedlane_dataset dataset;
  feedlane_init(&dataset, sizeof dataset);
  dataset.get = get;
  feedlane_field field;
  feedlane_init(&field, sizeof field);
  field.name = "index";
  field.dtype = {0, 64, 1};
  feedlane_loader_config config;
  feedlane_init(&config, sizeof config);
  config.sampler = sampler;
  config.dataset = &dataset;
  config.fields = &field;
  config.field_count = 1;
  config.workers = workers;
  config.start = FEEDLANE_START_FORK;
  config.keep_workers = 1;
  config.prefetch_factor = prefetch;
  config.out_of_order = in_order ? 0 : 1;
  config.dispatch = round_robin ? FEEDLANE_DISPATCH_ROUND_ROBIN : FEEDLANE_DISPATCH_LEAST_LOADED;
  feedlane_loader* loader = nullptr;
  if (feedlane_loader_create(&config, &loader, &e) != 0) die("loader", e);
  double took = 0;
  for (std::int64_t epoch = 0; epoch < 2; epoch++) {  // the first one starts the workers
    std::vector<int> seen(samples);
    const double before = now_ms();
    if (feedlane_loader_begin(loader, epoch, &e) != 0) die("begin", e);
    for (std::int64_t i = 0;; i++) {
      feedlane_batch batch;
      feedlane_init(&batch, sizeof batch);
      const std::int32_t s = feedlane_loader_next(loader, FEEDLANE_FOREVER, &batch, &e);
      if (s == FEEDLANE_END) break;
      if (s != 0) die("next", e);
      std::int64_t index = -1;
      std::memcpy(&index, batch.tensors[0].data, sizeof index);
      if (index != batch.batch || (in_order && index != i) || seen[static_cast<std::size_t>(index)]++ != 0) {
        std::fprintf(stderr, "batch %lld is wrong\n", static_cast<long long>(i));
        std::exit(1);
      }
      (void)feedlane_batch_release(loader, batch.token);
    }
    took = now_ms() - before;
    if (std::count(seen.begin(), seen.end(), 1) != samples) {
      std::fprintf(stderr, "batches are missing\n");
      std::exit(1);
    }
  }
  (void)feedlane_loader_destroy(&loader);
  (void)feedlane_sampler_destroy(&sampler);
  return took;
}

void row(const char* what, bool in_order, bool round_robin, int prefetch) {
  const double ideal = ideal_ms(std::int64_t{workers} * prefetch, in_order);
  const double took = epoch_ms(in_order, round_robin, prefetch);
  std::printf("%-42s window %3d  %7.1f ms  ideal %7.1f ms  ratio %.3f\n", what, workers * prefetch, took, ideal,
              took / ideal);
  std::fflush(stdout);
}

}  // namespace

int main() {
  std::printf("%lld samples of %.0f ms, one of %.0f ms, %d workers, without a straggler's stall %.1f ms\n",
              static_cast<long long>(samples), nap_ms, 50 * nap_ms, workers, ideal_ms(samples, false));
  row("out of order, least loaded", false, false, 2);
  row("out of order, round robin", false, true, 2);
  row("out of order, least loaded", false, false, 16);
  row("in order, least loaded", true, false, 16);
  row("in order, round robin", true, true, 16);
  row("in order, least loaded", true, false, 64);
  row("in order, round robin", true, true, 64);
}
