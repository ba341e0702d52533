// SPDX-License-Identifier: Apache-2.0
// Thread mode driven hard, on the one mapping that all threads share; what ThreadSanitizer looks at. Workers in pull and
// in callback form; batches released by other threads than the trainer's, in any order; epochs abandoned in the middle;
// statistics, events and interrupts from the side. Every batch of every epoch that is run to its end comes once, in order,
// with its bytes.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "feedlane.h"
#include "shared.hpp"
#include "support/api.hpp"

namespace {

constexpr std::int64_t samples = 4000;
constexpr std::int64_t batch_rows = 8;
constexpr int held = 6;

void check(feedlane_error& err, std::int32_t status) {
  if (status != FEEDLANE_OK) stress::die(status < 0 ? err.text : feedlane_status_name(status), 0, 0);
}

std::uint64_t content(std::int64_t index, std::uint64_t seed) { return static_cast<std::uint64_t>(index) * 31 + seed; }

std::int32_t get(void*, const feedlane_row* row, feedlane_error*) {
  auto* out = static_cast<std::uint64_t*>(row->fields[0]);
  for (std::uint64_t i = 0; i < row->bytes[0] / sizeof *out; i++) out[i] = content(row->index, row->seed) + i;
  return FEEDLANE_OK;
}

// Pull form: three calls a batch.
void pull(feedlane_loader* loader) {
  feedlane_error err;
  feedlane_init(&err, sizeof err);
  feedlane_worker* worker = nullptr;
  check(err, feedlane_worker_attach(-1, loader, FEEDLANE_FOREVER, &worker, &err));
  check(err, feedlane_worker_ready(worker, FEEDLANE_OK, nullptr, &err));
  const feedlane_task* task = nullptr;
  std::int32_t s = 0;
  while ((s = feedlane_worker_next(worker, FEEDLANE_FOREVER, &task, &err)) == FEEDLANE_OK) {
    feedlane_ahead ahead{};
    ahead.size = sizeof ahead;
    for (std::uint64_t after = 0; feedlane_task_ahead(task, after, &ahead, &err) == FEEDLANE_OK; after = ahead.id)
      for (std::uint64_t r = 0; r < ahead.count; r++)
        if (ahead.indices[r] != ahead.batch * batch_rows + static_cast<std::int64_t>(r))
          stress::die("an index ahead", static_cast<std::uint64_t>(ahead.indices[r]), r);
    auto* out = static_cast<std::uint64_t*>(task->tensors[0].data);
    const std::uint64_t width = task->tensors[0].bytes / sizeof *out / task->count;
    for (std::uint64_t r = 0; r < task->count; r++)
      for (std::uint64_t i = 0; i < width; i++) out[r * width + i] = content(task->indices[r], task->seeds[r]) + i;
    (void)feedlane_worker_scratch(worker, 100, 64);
    check(err, feedlane_task_commit(task, task->count, &err));
  }
  if (s != FEEDLANE_END) check(err, s);
  (void)feedlane_worker_destroy(&worker);
}

// Threads that release what the trainer is done with.
class Releasers {
 public:
  explicit Releasers(feedlane_loader* loader) : loader_(loader) {
    for (std::uint64_t i = 0; i < 2; i++) threads_.emplace_back([this, i] { run(i); });
  }
  Releasers(const Releasers&) = delete;
  Releasers& operator=(const Releasers&) = delete;
  ~Releasers() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  void give(std::uint64_t token) {
    (void)feedlane_batch_retain(loader_, token);  // two references: whichever thread comes last frees the slot
    {
      const std::lock_guard lock(mutex_);
      tokens_.push_back(token);
      tokens_.push_front(token);
    }
    changed_.notify_all();
  }

 private:
  void run(std::uint64_t seed) {
    stress::Random random{seed + 1};
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ended_ || !tokens_.empty(); });
      if (tokens_.empty()) return;
      const bool front = random(2) == 0;
      const std::uint64_t token = front ? tokens_.front() : tokens_.back();
      if (front) tokens_.pop_front();
      else tokens_.pop_back();
      lock.unlock();
      if (feedlane_batch_release(loader_, token) != FEEDLANE_OK) stress::die("release", token, 0);
    }
  }

  feedlane_loader* loader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::uint64_t> tokens_;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

void look(feedlane_loader* loader, const std::atomic<bool>& ended) {
  for (std::uint64_t i = 0; !ended.load(std::memory_order_relaxed); i++) {
    feedlane_stats stats{};
    stats.size = sizeof stats;
    (void)feedlane::test::observe(loader, feedlane_monitor_get_stats, &stats);
    feedlane_worker_stats worker{};
    worker.size = sizeof worker;
    (void)feedlane::test::observe(loader, feedlane_monitor_get_worker_stats, static_cast<std::int32_t>(i % 4), &worker);
    feedlane_event event{};
    event.size = sizeof event;
    (void)feedlane_loader_event(loader, &event);
    if (i % 16 == 0) (void)feedlane_loader_interrupt(loader);
    std::this_thread::yield();
  }
}

// One epoch, or its beginning.
void run_epoch(feedlane_loader* loader, std::int64_t epoch, std::int64_t most, Releasers& releasers,
               std::uint64_t base_seed) {
  feedlane_error err;
  feedlane_init(&err, sizeof err);
  check(err, feedlane_loader_begin(loader, epoch, &err));
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  for (std::int64_t b = 0; b < most; b++) {
    std::int32_t s = FEEDLANE_INTERRUPTED;
    while (s == FEEDLANE_INTERRUPTED || s == FEEDLANE_SLOTS_HELD)
      s = feedlane_loader_next(loader, FEEDLANE_FOREVER, &batch, &err);
    if (s == FEEDLANE_END && b == samples / batch_rows) return;
    check(err, s);
    if (batch.batch != b) stress::die("batch", static_cast<std::uint64_t>(batch.batch), static_cast<std::uint64_t>(b));
    const auto* words = static_cast<const std::uint64_t*>(batch.tensors[0].data);
    const std::uint64_t width = batch.tensors[0].bytes / sizeof *words / batch.count;
    for (std::uint64_t r = 0; r < batch.count; r++) {
      const std::int64_t position = b * batch_rows + static_cast<std::int64_t>(r);
      const std::uint64_t seed = feedlane_row_seed(base_seed, epoch, position);
      for (std::uint64_t i = 0; i < width; i++)
        if (words[r * width + i] != content(position, seed) + i)
          stress::die("a byte of a batch", words[r * width + i], content(position, seed) + i);
    }
    releasers.give(batch.token);
  }
}

}  // namespace

int main() {
  feedlane_error err;
  feedlane_init(&err, sizeof err);
  feedlane_sampler* sampler = nullptr;
  check(err, feedlane::test::sequential_sampler(samples, &sampler, &err));
  feedlane_field field{};
  field.size = sizeof field;
  field.name = "words";
  field.dtype = {1, 64, 1};
  field.ndim = 1;
  field.shape[0] = 9;
  feedlane_dataset dataset;
  feedlane_init(&dataset, sizeof dataset);
  dataset.get = get;
  feedlane_loader_config config;
  feedlane_init(&config, sizeof config);
  config.sampler = sampler;
  config.dataset = &dataset;
  config.fields = &field;
  config.field_count = 1;
  config.batch_size = batch_rows;
  config.workers = 4;
  config.start = FEEDLANE_START_THREAD;
  config.held = held;
  config.seed = 99;
  feedlane_loader* loader = nullptr;
  check(err, feedlane_loader_create(&config, &loader, &err));
  (void)feedlane_sampler_destroy(&sampler);

  std::vector<std::thread> workers;
  for (int i = 0; i < 2; i++) workers.emplace_back([loader] { pull(loader); });
  for (int i = 0; i < 2; i++)
    workers.emplace_back([loader] {
      feedlane_error e;
      feedlane_init(&e, sizeof e);
      check(e, feedlane_worker_run(-1, loader, nullptr, &e));
    });
  const auto epochs = static_cast<std::int64_t>(stress::length(120, 4000));
  std::atomic<bool> ended{false};
  std::thread watcher([&] { look(loader, ended); });
  {
    Releasers releasers(loader);
    for (std::int64_t e = 0; e < epochs; e++)
      run_epoch(loader, e, e % 3 == 2 ? 5 + e : samples / batch_rows + 1, releasers, config.seed);
  }
  ended.store(true, std::memory_order_relaxed);
  watcher.join();
  check(err, feedlane_loader_stop(loader, &err));
  for (std::thread& t : workers) t.join();
  feedlane_stats stats{};
  stats.size = sizeof stats;
  check(err, feedlane::test::observe(loader, feedlane_monitor_get_stats, &stats));
  if (stats.slots_free != stats.slots) stress::die("free slots at the end", stats.slots_free, stats.slots);
  check(err, feedlane_loader_destroy(&loader));
  std::printf("%lld epochs, %llu batches, %llu late results\n", static_cast<long long>(epochs),
              static_cast<unsigned long long>(stats.batches), static_cast<unsigned long long>(stats.late_results));
  return 0;
}
