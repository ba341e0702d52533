// SPDX-License-Identifier: Apache-2.0
// reads: samples on a store that takes 20 ms for each read, whatever is read beside it. Workers keep many reads in
// flight: of the task in hand and those behind it, of the task in hand alone, or one.
#include <fmt/core.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "batches.hpp"
#include "compare.hpp"

namespace compare {

using namespace bench;

namespace {

constexpr std::int64_t latency_ns = 20'000'000;
constexpr std::int64_t batch_rows = 8;
constexpr std::int32_t workers = 2;

// What a worker is told.
struct Told {
  std::int32_t reads;  // in flight at most
  std::int32_t looks_ahead;
};

// The reads of one worker, each by a thread that sleeps.
class Store {
 public:
  explicit Store(const Told& told) : looks_ahead_(told.looks_ahead != 0) {
    for (std::int32_t i = 0; i < told.reads; i++) threads_.emplace_back([this] { serve(); });
  }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store() {
    {
      const std::scoped_lock lock(mutex_);
      has_ended_ = true;
    }
    work_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  std::int32_t fetch(const feedlane_task* task, feedlane_error* err) {
    if (begun_.count(task->id) == 0) begin(task->id, task->indices, task->count);
    feedlane_ahead ahead;
    feedlane_init(&ahead, sizeof ahead);
    std::int32_t s = FEEDLANE_END;
    while (looks_ahead_ && (s = feedlane_task_ahead(task, newest_, &ahead, err)) == FEEDLANE_OK)
      begin(ahead.id, ahead.indices, ahead.count);
    if (s < 0) return s;
    std::unique_lock lock(mutex_);
    while (begun_.begin()->first < task->id) begun_.erase(begun_.begin());  // those don't come any more
    const std::shared_ptr<Batch> batch = begun_.at(task->id);
    done_.wait(lock, [&] { return batch->left == 0; });
    for (std::uint64_t row = 0; row < task->count; row++)
      std::memcpy(static_cast<char*>(task->tensors[0].data) + row * 8, &batch->samples[row], 8);
    begun_.erase(task->id);
    return FEEDLANE_OK;
  }

 private:
  struct Batch {
    std::vector<std::int64_t> samples;
    std::size_t left;
  };

  void begin(std::uint64_t id, const std::int64_t* indices, std::uint64_t count) {
    auto batch = std::make_shared<Batch>(Batch{{indices, indices + count}, count});
    newest_ = std::max(newest_, id);
    const std::scoped_lock lock(mutex_);
    begun_.emplace(id, batch);
    for (std::uint64_t i = 0; i < count; i++) queue_.push_back(batch);
    work_.notify_all();
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return has_ended_ || !queue_.empty(); });
      if (has_ended_) return;
      const std::shared_ptr<Batch> batch = std::move(queue_.front());
      queue_.pop_front();
      if (batch.use_count() == 1) continue;  // given up, and its last read
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::nanoseconds(latency_ns));
      lock.lock();
      if (--batch->left == 0) done_.notify_one();
    }
  }

  bool looks_ahead_;
  bool has_ended_ = false;
  std::uint64_t newest_ = 0;
  std::map<std::uint64_t, std::shared_ptr<Batch>> begun_;  // by task
  std::deque<std::shared_ptr<Batch>> queue_;               // one for each read
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::vector<std::thread> threads_;
};

feedlane_dataset dataset() {
  feedlane_dataset d;
  feedlane_init(&d, sizeof d);
  d.open = [](void*, const feedlane_worker_info* info, void** self, feedlane_error*) -> std::int32_t {
    Told told{};
    std::memcpy(&told, info->config, sizeof told);
    *self = new Store(told);
    return FEEDLANE_OK;
  };
  d.fetch = [](void* self, const feedlane_task* task, feedlane_error* err) {
    return static_cast<Store*>(self)->fetch(task, err);
  };
  d.close = [](void* self) { delete static_cast<Store*>(self); };
  return d;
}

// A loader whose workers are kept.
class Reading : public Epochs {
 public:
  Reading(const Told& told, std::int64_t samples) : told_(told), samples_(samples) {
    feedlane_error error;
    feedlane_init(&error, sizeof error);
    feedlane_sampler* order = sequential(samples);
    const feedlane_field field = bytes_field(8);
    const feedlane_dataset d = dataset();
    feedlane_loader_config config;
    feedlane_init(&config, sizeof config);
    config.sampler = order;
    config.dataset = &d;
    config.batch_size = batch_rows;
    config.workers = workers;
    config.start = FEEDLANE_START_FORK;
    config.keep_workers = 1;
    // All reads of each worker, and two batches more.
    config.prefetch_factor = static_cast<std::int32_t>(3 + (told.reads + batch_rows - 1) / batch_rows);
    config.fields = &field;
    config.field_count = 1;
    config.worker_config = &told_;
    config.worker_config_bytes = sizeof told_;
    open(config);
    (void)feedlane_sampler_destroy(&order);
  }
  // Samples a second of a whole epoch, its start and its end included.
  double rate() {
    const std::int64_t began = now_ns();
    begin();
    while (take()) continue;
    return static_cast<double>(samples_) / static_cast<double>(now_ns() - began) * 1e9;
  }

 private:
  Told told_;
  std::int64_t samples_;
};

struct Case {
  std::int32_t reads;
  bool looks_ahead;
  // What as many reads in flight allow.
  [[nodiscard]] double most() const { return 1e9 / latency_ns * workers * reads; }
  [[nodiscard]] const char* name() const {
    return looks_ahead ? "tasks ahead" : reads > 1 ? "task in hand" : "one read";
  }
};
constexpr Case cases[] = {{1, false}, {16, false}, {16, true}, {64, false}, {64, true}};

}  // namespace

Report reads(const Options& options) {
  std::vector<std::unique_ptr<Reading>> loaders;
  std::vector<Entry> entries;
  for (const Case& c : cases) {
    const double rate = c.looks_ahead ? c.most() : std::min(c.most(), Case{batch_rows, false}.most());
    const auto samples = static_cast<std::int64_t>(rate * static_cast<double>(options.count(2000, 500, 40)) / 1000);
    loaders.push_back(std::make_unique<Reading>(Told{c.reads, c.looks_ahead ? 1 : 0}, std::max(samples, batch_rows)));
    entries.push_back(
        {fmt::format("{} {}", c.name(), c.reads), [reading = loaders.back().get()] { return reading->rate(); }});
  }
  run_rounds(entries, options);
  if (!options.json)
    fmt::print("{:>8} {:>14} {:>30} {:>10} {:>26}\n", "reads", "of", "samples/s", "most", "of what they allow");
  Report report;
  for (std::size_t i = 0; i < std::size(cases); i++) {
    const Case& c = cases[i];
    Figure most;
    for (std::size_t round = 0; round < entries[i].figure.rounds().size(); round++) most.add(c.most());
    const Figure share = entries[i].figure.over(most);
    if (!options.json)
      fmt::print("{:>8} {:>14} {:>30} {:>10.0f} {:>26}\n", c.reads, c.name(), cell(entries[i].figure), c.most(),
                 cell(share));
    if (c.looks_ahead) report.ratio(fmt::format("reads.{}.over_reads_in_flight", c.reads), share);
    report.rows.push_back({{"reads", c.reads},
                           {"of", c.name()},
                           {"workers", workers},
                           {"latency_ms", latency_ns / 1'000'000},
                           {"samples_per_second", spread(entries[i].figure)},
                           {"of_what_they_allow", spread(share)}});
  }
  return report;
}

}  // namespace compare
