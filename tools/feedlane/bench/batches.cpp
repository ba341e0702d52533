// SPDX-License-Identifier: Apache-2.0
// The loaders that are measured, and the data set of their workers.
#include "batches.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

namespace bench {

namespace {

constexpr std::uint64_t page = 4096;

struct Source {
  std::vector<unsigned char> bytes;  // as many as are copied
};

// What a worker is told.
struct Told {
  std::uint64_t copied;
  std::uint64_t placed;  // whether it is to pin itself
};

std::int32_t open_source(void*, const feedlane_worker_info* info, void** state, feedlane_error*) {
  auto source = std::make_unique<Source>();
  Told told{};
  if (info->config_bytes != sizeof told) return FEEDLANE_E_ARGUMENT;
  std::memcpy(&told, info->config, sizeof told);
  if (told.placed != 0) pin(1 + static_cast<std::size_t>(info->id));
  source->bytes.assign(told.copied, static_cast<unsigned char>(info->id + 1));
  *state = source.release();
  return FEEDLANE_OK;
}

std::int32_t fetch_copy(void* state, const feedlane_task* task, feedlane_error*) {
  const auto& source = static_cast<const Source*>(state)->bytes;
  std::memcpy(task->tensors[0].data, source.data(), source.size());
  return FEEDLANE_OK;
}

void close_source(void* state) { delete static_cast<Source*>(state); }

feedlane_dataset dataset() {
  feedlane_dataset d;
  feedlane_init(&d, sizeof d);
  d.open = open_source;
  d.fetch = fetch_copy;
  d.close = close_source;
  return d;
}

// So that a read isn't left out.
volatile unsigned char seen;

}  // namespace

void touch(const void* data, std::uint64_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  unsigned char all = 0;
  for (std::uint64_t i = 0; i < bytes; i += page) all = static_cast<unsigned char>(all ^ p[i]);
  seen = all;
}

feedlane_sampler* sampler(std::int32_t kind, std::int64_t length) {
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  feedlane_sampler_config config;
  feedlane_init(&config, sizeof config);
  config.kind = kind;
  config.length = length;
  feedlane_sampler* created = nullptr;
  check("feedlane_sampler_create", feedlane_sampler_create(&config, &created, &error), error);
  return created;
}
feedlane_sampler* sequential(std::int64_t length) { return sampler(FEEDLANE_SAMPLER_SEQUENTIAL, length); }

feedlane_field bytes_field(std::uint64_t bytes) {
  feedlane_field field;
  feedlane_init(&field, sizeof field);
  field.name = "bytes";
  field.dtype = {1, 8, 1};
  field.ndim = 1;
  field.shape[0] = static_cast<std::int64_t>(bytes);
  return field;
}

Epochs::Epochs() {
  feedlane_init(&error_, sizeof error_);
  feedlane_init(&batch_, sizeof batch_);
}

Epochs::~Epochs() {
  if (feedlane_loader_destroy(&loader_) != FEEDLANE_OK) fail("feedlane_loader_destroy");
}

void Epochs::open(const feedlane_loader_config& config, std::uint64_t touched) {
  touched_ = touched;
  check("feedlane_loader_create", feedlane_loader_create(&config, &loader_, &error_), error_);
}

void Epochs::begin() { check("feedlane_loader_begin", feedlane_loader_begin(loader_, epoch_++, &error_), error_); }

void Epochs::touch_batch() const {
  touch(batch_.tensors[0].data, std::min<std::uint64_t>(batch_.tensors[0].bytes, touched_));
}

bool Epochs::take() {
  const std::int32_t s = feedlane_loader_next(loader_, FEEDLANE_FOREVER, &batch_, &error_);
  if (s == FEEDLANE_END) return false;
  check("feedlane_loader_next", s, error_);
  touch_batch();
  void* data = batch_.tensors[0].data;
  (void)feedlane_batch_release(loader_, batch_.token);
  if (epoch_ == 1 && slots_.size() < 4096) slots_.insert(data);  // later epochs pay for nothing but their batches
  return true;
}

double Epochs::epoch() {
  begin();
  (void)take();
  const std::int64_t began = now_ns();
  std::int64_t count = 0;
  while (take()) count++;
  return static_cast<double>(count) * 1e9 / static_cast<double>(now_ns() - began);
}

namespace {

double median_of(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// What a pair of looks at a clock takes by itself.
double cost_of(std::int64_t (*clock)()) {
  std::vector<double> times;
  for (int i = 0; i < 1001; i++) {
    const std::int64_t began = clock();
    times.push_back(static_cast<double>(clock() - began));
  }
  return median_of(times);
}

}  // namespace

// Batch by batch by another clock: a look at CPU time is a call into the kernel, which would be in the other one's way.
Epochs::Trainer Epochs::trainer() {
  begin();
  std::int64_t (*const clocks[])() = {now_ns, cpu_ns};
  std::vector<double> times[2];
  for (std::size_t which = 0;;) {
    const auto clock = clocks[which];
    const std::int64_t began = clock();
    const std::int32_t s = feedlane_loader_next(loader_, 0, &batch_, &error_);
    const std::int64_t got = clock();
    if (s == FEEDLANE_TIMEOUT) continue;
    if (s == FEEDLANE_END) break;
    check("feedlane_loader_next", s, error_);
    touch_batch();
    const std::int64_t touched = clock();
    (void)feedlane_batch_release(loader_, batch_.token);
    times[which].push_back(static_cast<double>(clock() - touched + got - began));
    which = 1 - which;
  }
  const auto beyond = [&](std::size_t which) {
    return std::max(median_of(times[which]) - 2 * cost_of(clocks[which]), 0.0);
  };
  return {beyond(0), beyond(1)};
}

void Epochs::wait_until_workers_sleep() const {
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  feedlane_monitor* monitor = nullptr;
  check("feedlane_monitor_of", feedlane_monitor_of(loader_, &monitor, &error), error);
  feedlane_worker_stats worker;
  feedlane_init(&worker, sizeof worker);
  for (std::int32_t i = 0; feedlane_monitor_get_worker_stats(monitor, i, &worker) == FEEDLANE_OK; i++)
    if (worker.pid != 0) wait_until_asleep(static_cast<pid_t>(worker.pid));
  (void)feedlane_monitor_destroy(&monitor);
}

Batches::Batches(const BatchOptions& options) {
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  feedlane_sampler* order = sequential(options.batches);
  const feedlane_field field = bytes_field(options.bytes);
  const feedlane_dataset data = dataset();
  const std::uint64_t copied = std::min(options.copied, options.bytes);
  feedlane_loader_config c;
  feedlane_init(&c, sizeof c);
  c.sampler = order;
  c.fields = &field;
  c.field_count = 1;
  c.batch_size = FEEDLANE_UNBATCHED;
  c.workers = options.workers;
  c.start = options.start;
  if (options.start != FEEDLANE_START_SPAWN) c.dataset = &data;
  c.prefetch_factor = options.prefetch;
  const Told told{copied, placement_is_ours() ? 1U : 0U};
  c.worker_config = &told;
  c.worker_config_bytes = sizeof told;
  c.keep_workers = 1;
  c.pinned = options.pinned;
  c.held = options.held;
  c.staged = options.staged;
  open(c, copied);
  (void)feedlane_sampler_destroy(&order);
}

namespace {

// A count of its own line: of one copier, or of the reader.
struct alignas(64) Count {
  std::atomic<std::int64_t> value{0};

  // Acquire: pairs with the release store of the copier, or of the reader, that counts here.
  void wait_for(std::int64_t least) const {
    while (value.load(std::memory_order_acquire) < least) {
#if defined(__x86_64__)
      __builtin_ia32_pause();  // leaves a sibling of this processor its share
#endif
    }
  }
};

// `pass(i)` comes before the copy number i, `tell(i, id)` after it by the copier `id`; `read()` runs in the calling thread.
template <class Pass, class Tell, class Read>
double copies(const std::vector<void*>& slots, std::uint64_t bytes, std::int64_t count, std::int32_t copiers, Pass pass,
              Tell tell, Read read) {
  Gate gate;
  const auto number = static_cast<std::size_t>(copiers);
  std::vector<std::int64_t> began(number), ended(number);
  std::vector<std::thread> threads;
  for (std::size_t id = 0; id < number; id++)
    threads.emplace_back([&, id] {
      pin(1 + id);
      const std::vector<unsigned char> source(bytes, 1);
      gate.pass(number);
      began[id] = now_ns();
      for (std::size_t i = id; i < static_cast<std::size_t>(count); i += number) {
        pass(i);
        std::memcpy(slots[i % slots.size()], source.data(), bytes);
        tell(i, id);
      }
      ended[id] = now_ns();
    });
  read();
  for (std::thread& t : threads) t.join();
  const std::int64_t ns = *std::ranges::max_element(ended) - *std::ranges::min_element(began);
  return static_cast<double>(count) * static_cast<double>(bytes) * 1e9 / static_cast<double>(ns);
}

}  // namespace

double copy_rate(const std::vector<void*>& slots, std::uint64_t bytes, std::int64_t count, std::int32_t copiers) {
  return copies(
      slots, bytes, count, copiers, [](std::size_t) {}, [](std::size_t, std::size_t) {}, [] {});
}

double read_copy_rate(const std::vector<void*>& slots, std::uint64_t bytes, std::int64_t count, std::int32_t copiers) {
  const auto number = static_cast<std::size_t>(copiers);
  std::vector<Count> copied(number);
  Count read;
  // Release and acquire: a copy is read after it was written, and written again after it was read.
  const auto pass = [&](std::size_t i) {
    read.wait_for(static_cast<std::int64_t>(i) + 1 - static_cast<std::int64_t>(slots.size()));
  };
  const auto tell = [&](std::size_t i, std::size_t id) {
    copied[id].value.store(static_cast<std::int64_t>(i / number + 1), std::memory_order_release);
  };
  const auto read_all = [&] {
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); i++) {
      copied[i % number].wait_for(static_cast<std::int64_t>(i / number + 1));
      touch(slots[i % slots.size()], bytes);
      read.value.store(static_cast<std::int64_t>(i) + 1, std::memory_order_release);
    }
  };
  return copies(slots, bytes, count, copiers, pass, tell, read_all);
}

int work_as_spawned(int fd) {
  const feedlane_dataset d = dataset();
  return feedlane_worker_run(fd, nullptr, &d, nullptr) < 0 ? 1 : 0;
}

}  // namespace bench
