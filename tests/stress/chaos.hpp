// SPDX-License-Identifier: Apache-2.0
// A data set that dawdles and fails now and then, eight workers for it, and somebody who kills, stops and wakes them.
#pragma once

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "feedlane.h"
#include "shared.hpp"
#include "support/api.hpp"
#include "support/slowness.hpp"

namespace chaos {

constexpr std::int32_t workers = 8;
constexpr std::int64_t samples = 40'000;
constexpr std::int64_t batch_size = 4;
constexpr std::size_t noise_bytes = 2000;
inline const std::int64_t patience_ns = INT64_C(30'000'000'000) * feedlane::test::slowness();

inline void nap(std::int64_t ns) {
  const timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
  (void)::nanosleep(&t, nullptr);
}

inline std::int64_t now_ns() {
  timespec t{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1'000'000'000) + t.tv_nsec;
}

// What a sample's bytes are: a function of its index and its seed.
inline void fill(std::int64_t index, std::uint64_t seed, unsigned char* noise) {
  std::uint64_t x = seed ^ static_cast<std::uint64_t>(index) * 0x9e3779b97f4a7c15;
  for (std::size_t i = 0; i < noise_bytes; i++) {
    x = x * 6364136223846793005 + 1442695040888963407;
    noise[i] = static_cast<unsigned char>(x >> 56);
  }
}

// One in two hundred takes 3 ms; one in three hundred fails the first time in a process.
inline std::int32_t get(void*, const feedlane_row* row, feedlane_error* err) {
  static std::int64_t failed = -1;
  const std::uint64_t draw = row->seed >> 40;
  if (draw % 300 == 0 && failed != row->index) {
    failed = row->index;
    err->transient = 1;
    (void)std::snprintf(err->text, sizeof err->text, "not this time");
    return FEEDLANE_E_OS;
  }
  if (draw % 200 == 1) nap(3'000'000);
  std::memcpy(row->fields[0], &row->index, sizeof row->index);
  std::memcpy(row->fields[1], &row->seed, sizeof row->seed);
  fill(row->index, row->seed, static_cast<unsigned char*>(row->fields[2]));
  return FEEDLANE_OK;
}

inline feedlane_dataset dataset() {
  feedlane_dataset d;
  feedlane_init(&d, sizeof d);
  d.get = get;
  return d;
}

[[noreturn]] inline void die(const char* what, const feedlane_error& e) {
  std::fprintf(stderr, "%s: %s\n", what, e.text);
  std::_Exit(1);
}

// `adjust` changes the configuration before it is used.
inline feedlane_loader* create(const void* state, std::uint64_t state_bytes, std::int32_t worker_count = workers,
                               std::int64_t task_timeout_ns = 300'000'000,
                               const std::function<void(feedlane_loader_config&)>& adjust = {}) {
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  feedlane_sampler* sampler = nullptr;
  feedlane_sampler_config order;
  feedlane_init(&order, sizeof order);
  order.length = samples;
  order.seed = 7;
  if (feedlane::test::random_sampler(&order, &sampler, &e) != FEEDLANE_OK) die("sampler", e);
  feedlane_field fields[3];
  for (feedlane_field& f : fields) feedlane_init(&f, sizeof f);
  fields[0].name = "index";
  fields[0].dtype = {0, 64, 1};
  fields[1].name = "seed";
  fields[1].dtype = {1, 64, 1};
  fields[2].name = "noise";
  fields[2].dtype = {1, 8, 1};
  fields[2].ndim = 1;
  fields[2].shape[0] = noise_bytes;
  feedlane_loader_config c;
  feedlane_init(&c, sizeof c);
  c.sampler = sampler;
  c.fields = fields;
  c.field_count = 3;
  c.batch_size = batch_size;
  c.workers = worker_count;
  c.keep_workers = 1;
  c.max_restarts = INT32_MAX;
  c.max_kills_per_batch = 1000;
  c.task_timeout_ns = task_timeout_ns;
  c.retries = 3;
  c.retry_backoff_ns = 1'000'000;
  c.state = state;
  c.state_bytes = state_bytes;
  if (state == nullptr) c.has_seed = 1;
  if (adjust) adjust(c);
  feedlane_loader* loader = nullptr;
  if (feedlane_loader_create(&c, &loader, &e) != FEEDLANE_OK) die("loader", e);
  (void)feedlane_sampler_destroy(&sampler);
  return loader;
}

// Whether the batch is what it should be, whoever made it.
inline void check(const feedlane_batch& batch, std::int64_t epoch) {
  for (std::uint64_t row = 0; row < batch.count; row++) {
    std::int64_t index = -1;
    std::uint64_t seed = 0;
    std::memcpy(&index, static_cast<const char*>(batch.tensors[0].data) + row * 8, 8);
    std::memcpy(&seed, static_cast<const char*>(batch.tensors[1].data) + row * 8, 8);
    const auto place = static_cast<std::uint64_t>(batch.batch) * batch_size + row;
    const std::uint64_t right = feedlane_row_seed(0, epoch, static_cast<std::int64_t>(place));
    if (index != batch.indices[row])
      stress::die("index", static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(batch.indices[row]));
    if (seed != right) stress::die("seed", seed, right);
    unsigned char noise[noise_bytes];
    fill(index, seed, noise);
    if (std::memcmp(noise, static_cast<const unsigned char*>(batch.tensors[2].data) + row * noise_bytes, noise_bytes) !=
        0)
      stress::die("the content of sample", static_cast<std::uint64_t>(index), place);
  }
}

// A thread of the trainer that disturbs its workers until told to stop.
class Disturber {
 public:
  Disturber(const feedlane_loader* loader, std::uint64_t seed)
      : loader_(loader), random_{seed * 2 + 1}, thread_([this] { run(); }) {}
  ~Disturber() {
    stop_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  [[nodiscard]] std::uint64_t kills() const { return kills_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t stops() const { return stops_.load(std::memory_order_relaxed); }

 private:
  // By pidfd: if the loader still names the process after it was opened, nobody else has its number.
  void signal_one(int signal) {
    const auto w = static_cast<std::int32_t>(random_(workers));
    const feedlane_worker_stats before = stats_of(w);
    const std::int64_t pid = before.pid;
    if (pid <= 1 || !may_hit(w, before.state)) return;
    const auto fd = static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
    if (fd < 0) return;
    if (stats_of(w).pid == pid && ::syscall(SYS_pidfd_send_signal, fd, signal, nullptr, 0) == 0) {
      if (signal == SIGKILL) kills_.fetch_add(1, std::memory_order_relaxed);
      if (signal == SIGSTOP) stops_.fetch_add(1, std::memory_order_relaxed);
      if (signal == SIGSTOP && random_(2) == 0) {  // else it stays so until the loader has had enough of it
        nap(static_cast<std::int64_t>(random_(30)) * 1'000'000);
        (void)::syscall(SYS_pidfd_send_signal, fd, SIGCONT, nullptr, 0);
      }
    }
    (void)::close(fd);
  }
  // Five in a row that end before they are ready are E_INIT. On a machine so busy that a start takes long, that must not
  // be our doing.
  bool may_hit(std::int32_t w, std::int32_t state) {
    int& in_a_row = early_[static_cast<std::size_t>(w)];
    if (state == FEEDLANE_WORKER_READY) in_a_row = 0;
    else if (++in_a_row > 3) return false;
    return true;
  }
  [[nodiscard]] feedlane_worker_stats stats_of(std::int32_t w) const {
    feedlane_worker_stats s;
    feedlane_init(&s, sizeof s);
    if (feedlane::test::observe(loader_, feedlane_monitor_get_worker_stats, w, &s) != FEEDLANE_OK) s.pid = 0;
    return s;
  }
  void run() {
    while (!stop_.load(std::memory_order_relaxed)) {
      nap(static_cast<std::int64_t>(random_(60)) * 1'000'000);
      signal_one(random_(5) == 0 ? SIGSTOP : SIGKILL);
    }
  }

  const feedlane_loader* loader_;
  stress::Random random_;
  std::array<int, workers> early_{};  // hits at this place's workers before they were ready, since the last one after
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> kills_{0};
  std::atomic<std::uint64_t> stops_{0};
  std::thread thread_;
};

}  // namespace chaos
