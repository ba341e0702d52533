// SPDX-License-Identifier: Apache-2.0
// device: copies to a GPU out of a loader's registered slots, beside memory that the driver has allocated, pageable memory, and
// a copy into pinned memory first, as torch's pin_memory does it; and how much of the copies a training loop sees.
#include <fmt/core.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include "batches.hpp"
#include "bench.hpp"
#include "cuda.hpp"

namespace bench {

namespace {

constexpr std::uint64_t mib = 1 << 20;
constexpr std::uint64_t overlap_bytes = 4 * mib;
constexpr std::int32_t overlap_workers = 2;

// A pool on the first device, with so many buffers.
class Pool {
 public:
  explicit Pool(std::uint32_t buffers = 0, std::uint64_t bytes = 0) {
    feedlane_pool_config config;
    feedlane_init(&config, sizeof config);
    config.backend = "cuda";
    config.buffers = buffers;
    config.buffer_bytes = bytes;
    feedlane_error error;
    feedlane_init(&error, sizeof error);
    check("feedlane_pool_create", feedlane_pool_create(&config, &pool_, &error), error);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    if (feedlane_pool_destroy(&pool_) != FEEDLANE_OK) fail("feedlane_pool_destroy");
  }
  [[nodiscard]] feedlane_pool* get() const { return pool_; }

 private:
  feedlane_pool* pool_ = nullptr;
};

// Workers are spawned: the context exists before they start, and a child that is forked then must not touch CUDA.
BatchOptions feed(std::uint64_t bytes, std::int32_t workers, std::int64_t batches, feedlane_pool* pool) {
  return {.bytes = bytes, .workers = workers, .batches = batches, .start = FEEDLANE_START_SPAWN, .pinned = pool};
}

feedlane_batch next_of(feedlane_loader* loader) {
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  std::int32_t s = FEEDLANE_INTERRUPTED;
  while (s == FEEDLANE_INTERRUPTED) s = feedlane_loader_next(loader, FEEDLANE_FOREVER, &batch, &error);
  check("feedlane_loader_next", s, error);
  return batch;
}

void copy_batch(feedlane_pool* pool, const feedlane_batch& batch, void* to, const cuda::OwnStream& stream) {
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  const feedlane_tensor& from = batch.tensors[0];
  check("feedlane_pool_copy", feedlane_pool_copy(pool, to, from.data, from.bytes, stream.get(), &error), error);
}

// ---- bandwidth ----

// A loader of which some batches are held: the slots that copies are taken from.
class Held {
 public:
  Held(std::uint64_t bytes, std::size_t count, feedlane_pool* pool)
      : batches_(holding(bytes, static_cast<std::int32_t>(count), pool)) {
    batches_.begin();
    for (std::size_t i = 0; i < count; i++) held_.push_back(next_of(loader()));
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    for (const feedlane_batch& b : held_) (void)feedlane_batch_release(loader(), b.token);
  }
  [[nodiscard]] feedlane_loader* loader() const { return batches_.loader(); }
  [[nodiscard]] const feedlane_batch& operator[](std::size_t i) const { return held_[i % held_.size()]; }
  [[nodiscard]] const void* data(std::size_t i) const { return (*this)[i].tensors[0].data; }

 private:
  static BatchOptions holding(std::uint64_t bytes, std::int32_t count, feedlane_pool* pool) {
    BatchOptions options = feed(bytes, 1, count, pool);
    options.prefetch = 1;
    options.held = count;
    return options;
  }
  Batches batches_;
  std::vector<feedlane_batch> held_;
};

// One size: GB/s of the ways in turn, each from as many places, so that none lives in a processor's cache alone.
class Copies {
 public:
  Copies(std::uint64_t bytes, const Options& options)
      : bytes_(bytes),
        count_(static_cast<std::size_t>(
            options.count(static_cast<std::int64_t>(std::max(1024 * mib / bytes, std::uint64_t{8})),
                          static_cast<std::int64_t>(std::max(256 * mib / bytes, std::uint64_t{4})), 2))),
        places_(options.tiny ? 1 : 4),
        device_(bytes),
        slots_(bytes, places_, pool_.get()),
        plain_(bytes, places_, nullptr) {
    for (std::size_t i = 0; i < places_; i++) {
      allocated_.push_back(std::make_unique<cuda::HostMemory>(bytes));
      pageable_.emplace_back(bytes, static_cast<unsigned char>(i + 1));
      std::memset(allocated_.back()->get(), 1, bytes);
    }
    for (auto& staging : staging_) staging = std::make_unique<cuda::HostMemory>(bytes);
  }

  double from_slots() {
    return gb_s([this](std::size_t i) { copy_batch(pool_.get(), slots_[i], device_.pointer(), streams_[0]); });
  }
  double from_allocated() {
    return gb_s([this](std::size_t i) { enqueue(allocated_[i % places_]->get(), streams_[0]); });
  }
  double from_pageable() {
    return gb_s([this](std::size_t i) {
      cuda::check("cuMemcpyHtoD", cuda::use().copy(device_.get(), pageable_[i % places_].data(), bytes_));
    });
  }
  // While one staging buffer is copied to the device, the other is filled.
  double pinned_then_copied() {
    return gb_s([this](std::size_t i) {
      streams_[i % 2].wait();
      std::memcpy(staging_[i % 2]->get(), plain_.data(i), bytes_);
      enqueue(staging_[i % 2]->get(), streams_[i % 2]);
    });
  }

 private:
  void enqueue(const void* from, const cuda::OwnStream& stream) {
    cuda::check("cuMemcpyHtoDAsync", cuda::use().copy_async(device_.get(), from, bytes_, stream.get()));
  }
  double gb_s(const std::function<void(std::size_t)>& copy) {
    const std::int64_t began = now_ns();
    for (std::size_t i = 0; i < count_; i++) copy(i);
    for (const cuda::OwnStream& s : streams_) s.wait();
    // A copy of pageable memory returns when that may be overwritten.
    cuda::check("cuStreamSynchronize", cuda::use().stream_wait(nullptr));
    return static_cast<double>(count_) * static_cast<double>(bytes_) / static_cast<double>(now_ns() - began);
  }

  std::uint64_t bytes_;
  std::size_t count_, places_;
  cuda::Memory device_;
  cuda::OwnStream streams_[2];
  Pool pool_;
  Held slots_, plain_;
  std::vector<std::unique_ptr<cuda::HostMemory>> allocated_;
  std::vector<std::vector<unsigned char>> pageable_;
  std::unique_ptr<cuda::HostMemory> staging_[2];
};

void measure_copies(std::uint64_t bytes, const Options& options, Report& report) {
  std::vector<Entry> entries;
  {
    Copies copies(bytes, options);
    entries.push_back({"slot", [&] { return copies.from_slots(); }});
    entries.push_back({"alloc_host", [&] { return copies.from_allocated(); }});
    entries.push_back({"pageable", [&] { return copies.from_pageable(); }});
    entries.push_back({"pin_then_copy", [&] { return copies.pinned_then_copied(); }});
    run_rounds(entries, options);
  }
  const Figure& slot = entries[0].figure;
  Json row{{"bytes", bytes}, {"device", cuda::device_name()}, {"driver", cuda::driver_version()}};
  for (const Entry& e : entries) row[e.name + "_gb_s"] = spread(e.figure);
  for (std::size_t i = 1; i < entries.size(); i++) {
    const Figure ratio = slot.over(entries[i].figure);
    row["over_" + entries[i].name] = spread(ratio);
    report.ratio(fmt::format("device.{}.over_{}", bytes, entries[i].name), ratio);
  }
  report.rows.push_back(row);
  if (options.json) return;
  fmt::print("{:>10}", bytes);
  for (const Entry& e : entries) fmt::print(" {:>28}", cell(e.figure));
  for (std::size_t i = 1; i < entries.size(); i++) fmt::print(" {:>26}", cell(slot.over(entries[i].figure)));
  fmt::print("\n");
}

// ---- overlap ----

// Work for the device that takes a known time: fills of a large buffer on a stream of its own.
class Work {
 public:
  explicit Work(std::uint64_t bytes) : bytes_(bytes), memory_(bytes) {}
  void enqueue() const {
    for (std::int64_t i = 0; i < fills_; i++)
      cuda::check("cuMemsetD32Async", cuda::use().fill_async(memory_.get(), 1, bytes_ / 4, stream_.get()));
  }
  // Milliseconds of so many together, and nothing else on the device.
  [[nodiscard]] double alone_ms(std::int64_t count) const {
    const std::int64_t began = now_ns();
    for (std::int64_t i = 0; i < count; i++) enqueue();
    stream_.wait();
    return static_cast<double>(now_ns() - began) / 1e6;
  }
  // From here on it takes about so long.
  void calibrate(double ms) {
    fills_ = 1;
    (void)alone_ms(2);
    const double one = alone_ms(10) / 10;
    fills_ = std::clamp<std::int64_t>(std::llround(ms / one), 1, 10'000);
  }
  [[nodiscard]] const cuda::OwnStream& stream() const { return stream_; }

 private:
  std::uint64_t bytes_;
  std::int64_t fills_ = 1;
  cuda::Memory memory_;
  cuda::OwnStream stream_;
};

// A trainer that copies the next batch while the device works on the one before: two places on the device in turn.
class Trainer {
 public:
  // `staged`: a thread copies batches into so many pinned buffers, as torch's pin_memory thread does; 0: slots are registered.
  Trainer(std::int64_t batches, std::uint32_t staged)
      : pool_(staged, staged == 0 ? 0 : overlap_bytes), count_(batches), batches_(options(staged)) {
    if (staged == 0) return;
    stager_ = std::thread([this] {
      feedlane_error error;
      feedlane_init(&error, sizeof error);
      check("feedlane_loader_run_stager", feedlane_loader_run_stager(loader(), &error), error);
    });
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer() {
    copying_.wait();
    (void)feedlane_loader_close(loader());
    if (stager_.joinable()) stager_.join();
  }

  // Milliseconds of an epoch, from when its first batch is there until the device has done its work on the last one.
  double epoch_ms(const Work* work) {
    batches_.begin();
    feedlane_batch batch = next_of(loader());
    const std::int64_t began = now_ns();
    for (std::int64_t i = 0; i < count_; i++) {
      const auto place = static_cast<std::size_t>(i % 2);
      if (i != 0) batch = next_of(loader());
      if (work != nullptr && i >= 2) copying_.wait_for(worked_[place].get());
      copy_batch(pool_.get(), batch, places_[place]->pointer(), copying_);
      release(batch);
      if (work == nullptr) continue;
      copied_[place].record(copying_);
      work->stream().wait_for(copied_[place].get());
      work->enqueue();
      worked_[place].record(work->stream());
    }
    copying_.wait();
    if (work != nullptr) work->stream().wait();
    const double ms = static_cast<double>(now_ns() - began) / 1e6;
    finish();
    return ms;
  }
  // One copy and nothing else.
  double copy_ms() {
    batches_.begin();
    const feedlane_batch batch = next_of(loader());
    constexpr int copies = 20;
    const std::int64_t began = now_ns();
    for (int i = 0; i < copies; i++) copy_batch(pool_.get(), batch, places_[0]->pointer(), copying_);
    copying_.wait();
    const double ms = static_cast<double>(now_ns() - began) / 1e6 / copies;
    (void)feedlane_batch_release(loader(), batch.token);
    return ms;
  }

 private:
  [[nodiscard]] BatchOptions options(std::uint32_t staged) const {
    BatchOptions o = feed(overlap_bytes, overlap_workers, count_, pool_.get());
    o.prefetch = 4;
    o.held = 3;
    o.staged = static_cast<std::int32_t>(staged);
    return o;
  }
  [[nodiscard]] feedlane_loader* loader() const { return batches_.loader(); }
  void release(const feedlane_batch& batch) {
    feedlane_error error;
    feedlane_init(&error, sizeof error);
    const std::int32_t s = feedlane_batch_release_on(loader(), batch.token, copying_.get(), &error);
    check("feedlane_batch_release_on", s, error);
  }
  // So that the next epoch abandons nothing.
  void finish() {
    feedlane_batch none;
    feedlane_init(&none, sizeof none);
    while (feedlane_loader_next(loader(), FEEDLANE_FOREVER, &none, nullptr) == FEEDLANE_INTERRUPTED) continue;
  }

  Pool pool_;
  std::int64_t count_;
  cuda::OwnStream copying_;
  cuda::OwnEvent copied_[2], worked_[2];
  std::unique_ptr<cuda::Memory> places_[2] = {std::make_unique<cuda::Memory>(overlap_bytes),
                                              std::make_unique<cuda::Memory>(overlap_bytes)};
  Batches batches_;
  std::thread stager_;
};

void measure_overlap(const Options& options, Report& report) {
  const std::int64_t batches = options.count(400, 100, 4);
  Work work(options.tiny ? mib : 64 * mib);
  Trainer registered(batches, 0), staged(batches, 4);
  // As long as two copies; where workers take longer to make a batch, as long as that and a half: what is looked for is whether
  // copies are hidden, not how fast two processors fill memory.
  const double copy_ms = registered.copy_ms();
  (void)registered.epoch_ms(nullptr);
  (void)staged.epoch_ms(nullptr);
  const double batch_ms =
      std::max(registered.epoch_ms(nullptr), staged.epoch_ms(nullptr)) / static_cast<double>(batches);
  work.calibrate(std::max(2 * copy_ms, 1.5 * batch_ms));
  std::vector<Entry> entries;
  entries.push_back({"work alone", [&] { return work.alone_ms(batches); }});
  entries.push_back({"registered", [&] { return registered.epoch_ms(&work); }});
  entries.push_back({"pin then copy", [&] { return staged.epoch_ms(&work); }});
  run_rounds(entries, options);
  const Figure& alone = entries[0].figure;
  const Figure ours = entries[1].figure.over(alone);
  const Figure theirs = entries[2].figure.over(alone);
  report.ratio("device.overlap.loop_over_work", ours);
  report.ratio("device.overlap.pin_then_copy_loop_over_work", theirs);
  report.rows.push_back({{"bytes", overlap_bytes},
                         {"device", cuda::device_name()},
                         {"driver", cuda::driver_version()},
                         {"workers", overlap_workers},
                         {"batches", batches},
                         {"copy_ms", rounded(copy_ms)},
                         {"fed_batch_ms", rounded(batch_ms)},
                         {"work_ms", spread(alone)},
                         {"loop_ms", spread(entries[1].figure)},
                         {"pin_then_copy_loop_ms", spread(entries[2].figure)},
                         {"loop_over_work", spread(ours)},
                         {"pin_then_copy_loop_over_work", spread(theirs)}});
  if (options.json) return;
  fmt::print("\n{} batches of {} bytes from {} workers; a copy {:.4g} ms, a batch without work {:.4g} ms\n", batches,
             overlap_bytes, overlap_workers, copy_ms, batch_ms);
  fmt::print("ms: work alone {}, loop {}, pin then copy {}\n", cell(alone), cell(entries[1].figure),
             cell(entries[2].figure));
  fmt::print("over the work alone (ideal 1): registered slots {}, pin then copy {}\n", cell(ours), cell(theirs));
}

}  // namespace

std::string device_missing() { return cuda::missing(); }

Report device(const Options& options) {
  // The driver starts threads when it likes, where the thread is that calls it: its callbacks would stand in the trainer's way.
  unpin();
  cuda::use();
  Report report;
  if (!options.json) {
    fmt::print("{}, driver for CUDA {}; GB/s to the device, and registered slots over the others\n",
               cuda::device_name(), cuda::driver_version());
    fmt::print("{:>10} {:>28} {:>28} {:>28} {:>28} {:>26} {:>26} {:>26}\n", "bytes", "registered slot",
               "cuMemAllocHost", "pageable", "pin then copy", "/cuMemAllocHost", "/pageable", "/pin then copy");
  }
  for (const std::uint64_t bytes : {mib / 4, 4 * mib, 64 * mib}) measure_copies(bytes, options, report);
  measure_overlap(options, report);
  return report;
}

}  // namespace bench
