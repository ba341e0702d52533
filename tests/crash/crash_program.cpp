// SPDX-License-Identifier: Apache-2.0
// A trainer and its worker in one program, driven by the tests in this folder: each line that it prints is an event that a
// test waits for.
//
//   crash_program MODE [COUNT]
//
// normal, break, exception, error: a loader of 2 workers ended that way; then what is left is printed
// busy, idle, stuck:  a trainer that stays, with workers in that state, until it is killed
// take:    COUNT batches, then the end
// show:    one batch; prints where its bytes lie, waits for a line on stdin, prints the first byte again
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "feedlane.h"
#include "support/api.hpp"

namespace {

void fail_if(std::int32_t status, const feedlane_error& err) {
  if (status == FEEDLANE_OK) return;
  std::printf("failed %s: %s\n", feedlane_status_name(status), err.text);
  std::exit(1);
}

// ---- worker ----

struct Settings {
  char mode[16];
};

std::int32_t open_worker(void*, const feedlane_worker_info* info, void** self, feedlane_error*) {
  *self = const_cast<void*>(info->config);
  return FEEDLANE_OK;
}

std::int32_t get(void* self, const feedlane_row* row, feedlane_error* err) {
  const std::string mode = static_cast<const Settings*>(self)->mode;
  if (mode == "busy" && row->index >= 4)
    for (std::atomic<int> spin{0};;) spin.fetch_add(1, std::memory_order_relaxed);
  if (mode == "stuck" && row->index >= 4) {
    sigset_t all;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, nullptr);
    for (;;) (void)::pause();
  }
  if (mode == "error" && row->index == 40) {
    (void)std::snprintf(err->text, sizeof err->text, "sample 40 is broken");
    return FEEDLANE_E_SAMPLE;
  }
  auto* bytes = static_cast<unsigned char*>(row->fields[0]);
  std::memset(bytes, static_cast<int>(row->index & 0x7f), row->bytes[0]);
  const auto address = reinterpret_cast<std::uint64_t>(bytes);
  std::memcpy(row->fields[1], &address, sizeof address);  // where the worker sees it
  return FEEDLANE_OK;
}

// ---- trainer ----

feedlane_loader* make_loader(const char* mode, std::int64_t samples, feedlane_error& err) {
  feedlane_sampler* sampler = nullptr;
  fail_if(feedlane::test::sequential_sampler(samples, &sampler, &err), err);
  feedlane_field fields[2] = {};
  fields[0].size = fields[1].size = sizeof fields[0];
  fields[0].name = "bytes";
  fields[0].dtype = {1, 8, 1};
  fields[0].ndim = 1;
  fields[0].shape[0] = 1000;
  fields[1].name = "address";
  fields[1].dtype = {1, 64, 1};
  Settings settings{};
  (void)std::snprintf(settings.mode, sizeof settings.mode, "%s", mode);
  feedlane_loader_config config;
  feedlane_init(&config, sizeof config);
  config.sampler = sampler;
  config.fields = fields;
  config.field_count = 2;
  config.workers = 2;
  config.keep_workers = 1;
  config.worker_config = &settings;
  config.worker_config_bytes = sizeof settings;
  config.stop_timeout_ns = 300'000'000;
  config.term_timeout_ns = 300'000'000;
  feedlane_loader* loader = nullptr;
  fail_if(feedlane_loader_create(&config, &loader, &err), err);
  (void)feedlane_sampler_destroy(&sampler);
  fail_if(feedlane_loader_begin(loader, 0, &err), err);
  return loader;
}

struct Left {
  int descriptors = 0;
  int mappings = 0;
  bool children = false;
};

Left what_is_left() {
  Left left;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("feedlane-") != std::string::npos) left.mappings++;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) left.descriptors++;
  (void)::closedir(folder);
  left.children = !(::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD);
  return left;
}

struct Owner {  // as a host in C++ would hold it
  explicit Owner(feedlane_loader* l) : loader(l) {}
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() { (void)feedlane_loader_destroy(&loader); }
  feedlane_loader* loader;
};

void end_it(const std::string& mode, feedlane_error& err) {
  Owner owner(make_loader(mode.c_str(), 100, err));
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  int taken = 0;
  for (std::int32_t s = 0; (s = feedlane_loader_next(owner.loader, FEEDLANE_FOREVER, &batch, &err)) != FEEDLANE_END;) {
    if (s == FEEDLANE_E_SAMPLE && mode == "error") {
      std::printf("error %lld: %s\n", static_cast<long long>(err.batch), err.text);
      return;
    }
    fail_if(s, err);
    fail_if(feedlane_batch_release(owner.loader, batch.token), err);
    if (++taken == 10 && mode == "break") return;
    if (taken == 10 && mode == "exception") throw std::runtime_error("the host's own");
  }
}

int run_to_an_end(const std::string& mode, feedlane_error& err) {
  const Left before = what_is_left();
  try {
    end_it(mode, err);
  } catch (const std::exception&) {
    std::printf("caught\n");
  }
  const Left after = what_is_left();
  std::printf("left descriptors %d mappings %d children %d\n", after.descriptors - before.descriptors,
              after.mappings - before.mappings, after.children ? 1 : 0);
  return 0;
}

constexpr const char* stop_first = "CRASH_PROGRAM_STOP_FIRST";

[[noreturn]] void name_workers_and_stay(feedlane_loader* loader, feedlane_error& err) {
  for (std::int32_t w = 0; w < 2; w++) {
    feedlane_worker_stats stats{};
    stats.size = sizeof stats;
    fail_if(feedlane::test::observe(loader, feedlane_monitor_get_worker_stats, w, &stats), err);
    std::printf("worker %lld\n", static_cast<long long>(stats.pid));
  }
  std::printf("ready\n");
  (void)std::fflush(stdout);
  for (;;) (void)::pause();
}

// Four samples come through; then the workers hang in the fifth and later ones, or have nothing to do.
int stay(const std::string& mode, feedlane_error& err) {
  feedlane_loader* loader = make_loader(mode.c_str(), mode == "idle" ? 4 : 1000, err);
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  for (int i = 0; i < 4; i++) {
    fail_if(feedlane_loader_next(loader, FEEDLANE_FOREVER, &batch, &err), err);
    fail_if(feedlane_batch_release(loader, batch.token), err);
  }
  name_workers_and_stay(loader, err);
}

// The workers stop themselves before they have attached.
int start_stopped(feedlane_error& err) {
  (void)::setenv(stop_first, "1", 1);
  feedlane_loader* loader = make_loader("idle", 4, err);
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  if (feedlane_loader_next(loader, 0, &batch, &err) != FEEDLANE_TIMEOUT) return 1;  // they are started
  name_workers_and_stay(loader, err);
}

// All workers: one that attaches late has no part in a short epoch, and its start would be counted only in long ones.
void wait_for_workers(feedlane_loader* loader, feedlane_error& err) {
  feedlane_worker_stats stats;
  feedlane_init(&stats, sizeof stats);
  for (std::int32_t w = 0;
       feedlane::test::observe(loader, feedlane_monitor_get_worker_stats, w, &stats) == FEEDLANE_OK;) {
    if (stats.state == FEEDLANE_WORKER_READY) {
      w++;
    } else if (const std::int32_t s = feedlane_loader_poll(loader, &err); s < 0) {
      fail_if(s, err);
    } else {
      std::this_thread::yield();
    }
  }
}

int take(std::int64_t count, feedlane_error& err) {
  feedlane_loader* loader = make_loader("take", count, err);
  wait_for_workers(loader, err);
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  for (std::int64_t i = 0; i < count; i++) {
    fail_if(feedlane_loader_next(loader, FEEDLANE_FOREVER, &batch, &err), err);
    fail_if(feedlane_batch_release(loader, batch.token), err);
  }
  (void)feedlane_loader_destroy(&loader);
  return 0;
}

int show(feedlane_error& err) {
  feedlane_loader* loader = make_loader("show", 10, err);
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  fail_if(feedlane_loader_next(loader, FEEDLANE_FOREVER, &batch, &err), err);
  const auto* bytes = static_cast<const volatile unsigned char*>(batch.tensors[0].data);
  std::uint64_t in_worker = 0;
  std::memcpy(&in_worker, batch.tensors[1].data, sizeof in_worker);
  feedlane_worker_stats stats{};
  stats.size = sizeof stats;
  fail_if(feedlane::test::observe(loader, feedlane_monitor_get_worker_stats, batch.worker, &stats), err);
  std::printf("worker %lld\ntrainer_address %llu\nworker_address %llu\noffset %llu\nbyte %d\n",
              static_cast<long long>(stats.pid),
              static_cast<unsigned long long>(reinterpret_cast<std::uint64_t>(batch.tensors[0].data)),
              static_cast<unsigned long long>(in_worker), static_cast<unsigned long long>(batch.tensors[0].offset),
              bytes[0]);
  (void)std::fflush(stdout);
  (void)std::getchar();
  std::printf("byte %d\n", bytes[0]);
  (void)feedlane_batch_release(loader, batch.token);
  (void)feedlane_loader_destroy(&loader);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  feedlane_error err;
  feedlane_init(&err, sizeof err);
  if (const std::int32_t fd = feedlane_worker_fd(); fd >= 0) {
    if (std::getenv(stop_first) != nullptr) (void)std::raise(SIGSTOP);
    feedlane_dataset dataset;
    feedlane_init(&dataset, sizeof dataset);
    dataset.open = open_worker;
    dataset.get = get;
    return feedlane_worker_run(fd, nullptr, &dataset, &err) == FEEDLANE_OK ? 0 : 1;
  }
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "busy" || mode == "idle" || mode == "stuck") return stay(mode, err);
  if (mode == "starting") return start_stopped(err);
  if (mode == "take") return take(argc > 2 ? std::atoll(argv[2]) : 100, err);
  if (mode == "show") return show(err);
  if (mode == "normal" || mode == "break" || mode == "exception" || mode == "error") return run_to_an_end(mode, err);
  std::fprintf(stderr, "unknown mode '%s'\n", mode.c_str());
  return 2;
}
