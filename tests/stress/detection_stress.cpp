// SPDX-License-Identifier: Apache-2.0
// 7. Faults: how soon a death is noticed and made good, and how long an end takes that workers don't want. Prints medians;
// checks only what doesn't hang on the clock.
// promise: end-limited-time, fault-detected-soon
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "feedlane.h"
#include "shared.hpp"
#include "support/api.hpp"

namespace {

constexpr std::int64_t megabytes = 15;  // a batch; four slots are an arena of 60 MiB

std::int64_t now_ns() {
  timespec t{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1'000'000'000) + t.tv_nsec;
}

void nap(std::int64_t ns) {
  const timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
  (void)::nanosleep(&t, nullptr);
}

[[noreturn]] void die(const char* what, const feedlane_error& e) {
  std::fprintf(stderr, "%s: %s\n", what, e.text);
  std::_Exit(1);
}

// The first attempt at every second batch doesn't come to its end.
std::int32_t get(void* self, const feedlane_row* row, feedlane_error*) {
  const bool never = self != nullptr || (row->index % 2 == 1 && row->task->attempt == 0);
  while (never) nap(1'000'000'000);
  std::memcpy(row->fields[0], &row->index, sizeof row->index);
  return FEEDLANE_OK;
}

feedlane_loader* create(std::int32_t workers, std::int64_t samples, std::int64_t bytes, bool all_stuck) {
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  feedlane_sampler* sampler = nullptr;
  if (feedlane::test::sequential_sampler(samples, &sampler, &e) != FEEDLANE_OK) die("sampler", e);
  feedlane_dataset dataset;
  feedlane_init(&dataset, sizeof dataset);
  dataset.get = get;
  static int stuck;
  if (all_stuck) dataset.user_data = &stuck;
  feedlane_field field;
  feedlane_init(&field, sizeof field);
  field.name = "content";
  field.dtype = {1, 8, 1};
  field.ndim = 1;
  field.shape[0] = bytes;
  feedlane_loader_config c;
  feedlane_init(&c, sizeof c);
  c.sampler = sampler;
  c.dataset = &dataset;
  c.fields = &field;
  c.field_count = 1;
  c.workers = workers;
  c.start = FEEDLANE_START_FORK;
  c.prefetch_factor = 1;
  c.stop_timeout_ns = 200'000'000;
  c.term_timeout_ns = 100'000'000;
  feedlane_loader* loader = nullptr;
  if (feedlane_loader_create(&c, &loader, &e) != FEEDLANE_OK) die("loader", e);
  (void)feedlane_sampler_destroy(&sampler);
  return loader;
}

double median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// By pidfd: if the loader still names the process after it was opened, nobody else has its number.
void kill_worker(const feedlane_loader* loader, std::int32_t w) {
  const auto pid_of = [&] {
    feedlane_worker_stats s;
    feedlane_init(&s, sizeof s);
    (void)feedlane::test::observe(loader, feedlane_monitor_get_worker_stats, w, &s);
    return s.pid;
  };
  const std::int64_t pid = pid_of();
  if (pid <= 1) return;
  const auto fd = static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
  if (fd >= 0 && pid_of() == pid) (void)::syscall(SYS_pidfd_send_signal, fd, SIGKILL, nullptr, 0);
  (void)::close(fd);
}

// Both workers are killed while one has the odd batch in hand and the trainer sleeps in next.
void deaths(std::int64_t runs) {
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  feedlane_loader* loader = create(2, 2 * runs, megabytes << 20, false);
  if (feedlane_loader_begin(loader, 0, &e) != FEEDLANE_OK) die("begin", e);
  std::vector<double> noticed, made_good;
  for (std::int64_t i = 0; i < 2 * runs; i++) {
    std::int64_t killed_at = 0;
    std::thread killer;
    feedlane_event event;
    feedlane_init(&event, sizeof event);
    while (feedlane_loader_event(loader, &event) == FEEDLANE_OK) continue;  // of deaths before this one
    if (i % 2 == 1)
      killer = std::thread([&] {
        nap(20'000'000);  // until the trainer sleeps, and one of them has the batch in hand
        killed_at = now_ns();
        kill_worker(loader, 0);
        kill_worker(loader, 1);
      });
    feedlane_batch batch;
    feedlane_init(&batch, sizeof batch);
    if (feedlane_loader_next(loader, INT64_C(20'000'000'000), &batch, &e) != FEEDLANE_OK) die("next", e);
    const std::int64_t there = now_ns();
    if (killer.joinable()) killer.join();
    if (batch.batch != i) stress::die("batch", static_cast<std::uint64_t>(batch.batch), static_cast<std::uint64_t>(i));
    (void)feedlane_batch_release(loader, batch.token);
    if (i % 2 == 0) continue;
    std::int64_t first = 0;
    while (feedlane_loader_event(loader, &event) == FEEDLANE_OK)
      if (event.kind == FEEDLANE_EVENT_WORKER_DIED && first == 0 &&
          static_cast<std::int64_t>(event.time_ns) >= killed_at)
        first = static_cast<std::int64_t>(event.time_ns);
    if (first == 0 && there < killed_at) continue;  // the batch was there before the workers were killed
    if (first == 0) stress::die("a death told of", 0, 1);
    noticed.push_back(static_cast<double>(first - killed_at) / 1e6);
    made_good.push_back(static_cast<double>(there - killed_at) / 1e6);
  }
  feedlane_stats stats;
  feedlane_init(&stats, sizeof stats);
  (void)feedlane::test::observe(loader, feedlane_monitor_get_stats, &stats);
  const double middle = median(noticed);  // sorts
  std::printf(
      "arena %.0f MiB, %zu deaths: noticed after %.2f ms (worst %.2f), the batch there, by a new worker, after %.2f "
      "ms\n",
      static_cast<double>(stats.data_bytes) / (1 << 20), noticed.size(), middle, noticed.back(), median(made_good));
  (void)feedlane_loader_destroy(&loader);
}

// Workers that neither look at the done-event nor mind SIGTERM.
void ends(std::int32_t workers) {
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  (void)::signal(SIGTERM, SIG_IGN);  // forked workers inherit it
  feedlane_loader* loader = create(workers, workers, 4096, true);
  if (feedlane_loader_begin(loader, 0, &e) != FEEDLANE_OK) die("begin", e);
  for (std::int32_t w = 0; w < workers;) {
    (void)feedlane_loader_poll(loader, nullptr);
    feedlane_worker_stats s;
    feedlane_init(&s, sizeof s);
    (void)feedlane::test::observe(loader, feedlane_monitor_get_worker_stats, w, &s);
    if (s.state == FEEDLANE_WORKER_READY) w++;
    else nap(1'000'000);
  }
  nap(50'000'000);
  const std::int64_t before = now_ns();
  if (feedlane_loader_stop(loader, &e) != FEEDLANE_OK) die("stop", e);
  std::printf("%d stuck workers: stopped after %.1f ms, the deadlines are 300 ms\n", workers,
              static_cast<double>(now_ns() - before) / 1e6);
  (void)feedlane_loader_destroy(&loader);
  (void)::signal(SIGTERM, SIG_DFL);
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  deaths(static_cast<std::int64_t>(stress::length(20, 100)));
  ends(2);
  ends(32);
  return 0;
}
