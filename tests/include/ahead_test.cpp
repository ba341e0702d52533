// SPDX-License-Identifier: Apache-2.0
// Task::ahead: the tasks behind the one in hand, in the C++ interface.
#include <doctest/doctest.h>

#include <feedlane/feedlane.hpp>
#include <map>
#include <optional>
#include <thread>
#include <vector>

namespace {

// Notes what it sees, and compares each task with it.
struct Watching {
  void fetch(const feedlane::Task& task) {
    feedlane::Error error;
    CHECK(task.ahead(UINT64_MAX) == std::nullopt);
    CHECK(task.ahead(UINT64_MAX, error) == std::nullopt);
    CHECK_FALSE(error);
    const auto before = announced.find(task.id());
    if (before != announced.end()) {
      seen++;
      CHECK(before->second == std::vector(task.indices().begin(), task.indices().end()));
    }
    std::uint64_t newest = task.id();
    while (const std::optional<feedlane::Ahead> next = task.ahead(newest)) {
      CHECK(next->id > newest);
      CHECK(next->epoch == task.epoch());
      CHECK(next->batch > task.batch());
      newest = next->id;
      announced[newest].assign(next->indices.begin(), next->indices.end());
    }
    for (std::int64_t& value : task[0].as<std::int64_t>()) value = 1;
  }
  std::map<std::uint64_t, std::vector<std::int64_t>> announced;
  int seen = 0;
};

}  // namespace

TEST_CASE("a C++ data set sees the later tasks of its queue with their indices") {
  Watching watching;
  const feedlane_dataset dataset = feedlane::dataset_of(watching);
  const feedlane::Sampler order = feedlane::Sampler::sequential(80);
  feedlane::LoaderOptions options;
  options.sampler = &order;
  options.dataset = &dataset;
  options.fields = {feedlane::field<std::int64_t>("one")};
  options.batch_size = 2;
  options.workers = 1;
  options.prefetch_factor = 5;
  options.start = feedlane::Start::thread;
  feedlane::Loader loader(options);
  std::thread worker([&] { (void)loader.run_worker(); });
  int batches = 0;
  loader.start_epoch(0);
  while (const std::optional<feedlane::Batch> batch = loader.next()) batches += batch->size() == 1 ? 1 : 0;
  CHECK(batches == 40);
  CHECK(watching.seen >= 4);
  loader.stop();
  worker.join();
}
