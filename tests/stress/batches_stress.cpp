// SPDX-License-Identifier: Apache-2.0
// A million small batches: memory, descriptors, mappings and segments of the trainer and of its workers are after the last
// what they were after the first thousand.
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "feedlane.h"
#include "shared.hpp"
#include "support/api.hpp"

namespace {

struct Footprint {
  std::uint64_t resident_kib = 0, descriptors = 0, mappings = 0;
};

Footprint footprint(std::int64_t pid) {
  const std::string proc = "/proc/" + std::to_string(pid);
  Footprint f;
  std::ifstream status(proc + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) f.resident_kib = std::stoull(line.substr(6));
  std::ifstream maps(proc + "/maps");
  for (std::string line; std::getline(maps, line);) f.mappings++;
  if (DIR* folder = ::opendir((proc + "/fd").c_str())) {
    while (::readdir(folder) != nullptr) f.descriptors++;
    (void)::closedir(folder);
  }
  return f;
}

void check(feedlane_error& err, std::int32_t status) {
  if (status == FEEDLANE_OK) return;
  std::fprintf(stderr, "%s: %s\n", feedlane_status_name(status), err.text);
  std::_Exit(1);
}

std::int32_t get(void*, const feedlane_row* row, feedlane_error*) {
  std::memcpy(row->fields[0], &row->index, sizeof row->index);
  return FEEDLANE_OK;
}

void must_be(const char* what, std::uint64_t found, std::uint64_t before, std::uint64_t slack) {
  if (found > before + slack) stress::die(what, found, before);
}

}  // namespace

int main() {
  feedlane_error err;
  feedlane_init(&err, sizeof err);
  if (const std::int32_t fd = feedlane_worker_fd(); fd >= 0) {
    feedlane_dataset dataset;
    feedlane_init(&dataset, sizeof dataset);
    dataset.get = get;
    return feedlane_worker_run(fd, nullptr, &dataset, &err) == FEEDLANE_OK ? 0 : 1;
  }
  const auto batches = static_cast<std::int64_t>(stress::length(100'000, 1'000'000));
  feedlane_field field{};
  field.size = sizeof field;
  field.name = "index";
  field.dtype = {0, 64, 1};
  feedlane_loader_config config;
  feedlane_init(&config, sizeof config);
  feedlane_sampler* sampler = nullptr;
  check(err, feedlane::test::sequential_sampler(batches, &sampler, &err));
  config.sampler = sampler;
  config.fields = &field;
  config.field_count = 1;
  config.workers = 2;
  feedlane_loader* loader = nullptr;
  check(err, feedlane_loader_create(&config, &loader, &err));
  (void)feedlane_sampler_destroy(&sampler);
  check(err, feedlane_loader_begin(loader, 0, &err));

  std::vector<Footprint> first(3);
  std::vector<std::int64_t> pids{::getpid(), 0, 0};
  feedlane_stats before{};
  before.size = sizeof before;
  const auto began = std::chrono::steady_clock::now();
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  for (std::int64_t i = 0; i < batches; i++) {
    check(err, feedlane_loader_next(loader, FEEDLANE_FOREVER, &batch, &err));
    std::int64_t index = -1;
    std::memcpy(&index, batch.tensors[0].data, sizeof index);
    if (index != i)
      stress::die("a batch out of order", static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(i));
    check(err, feedlane_batch_release(loader, batch.token));
    if (i == 1000) {
      for (std::int32_t w = 0; w < 2; w++) {
        feedlane_worker_stats stats{};
        stats.size = sizeof stats;
        check(err, feedlane::test::observe(loader, feedlane_monitor_get_worker_stats, w, &stats));
        pids[static_cast<std::size_t>(w) + 1] = stats.pid;
      }
      std::transform(pids.begin(), pids.end(), first.begin(), footprint);
      check(err, feedlane::test::observe(loader, feedlane_monitor_get_stats, &before));
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  for (std::size_t p = 0; p < pids.size(); p++) {
    const Footprint last = footprint(pids[p]);
    must_be("descriptors", last.descriptors, first[p].descriptors, 0);
    must_be("mappings", last.mappings, first[p].mappings, 0);
    must_be("resident KiB", last.resident_kib, first[p].resident_kib,
            512);  // code and heap pages touched late; a leak of 6 bytes a batch is more
  }
  feedlane_stats after{};
  after.size = sizeof after;
  check(err, feedlane::test::observe(loader, feedlane_monitor_get_stats, &after));
  must_be("data segment", after.data_bytes, before.data_bytes, 0);
  must_be("control segment", after.control_bytes, before.control_bytes, 0);
  const std::int32_t last = feedlane_loader_next(loader, FEEDLANE_FOREVER, &batch, &err);
  if (last != FEEDLANE_END) stress::die("the end", static_cast<std::uint64_t>(last), FEEDLANE_END);
  check(err, feedlane_loader_destroy(&loader));
  std::printf("%lld batches, %.2f million/s; trainer %llu KiB, %llu descriptors, %llu mappings\n",
              static_cast<long long>(batches), static_cast<double>(batches) / seconds / 1e6,
              static_cast<unsigned long long>(footprint(pids[0]).resident_kib),
              static_cast<unsigned long long>(first[0].descriptors),
              static_cast<unsigned long long>(first[0].mappings));
  return 0;
}
