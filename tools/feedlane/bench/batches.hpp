// SPDX-License-Identifier: Apache-2.0
// Loaders as they are measured, and their trainer; above all one whose workers copy batches of one size from a buffer of their
// own into their slots.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "measure.hpp"

namespace bench {

// An array of so many bytes a sample.
feedlane_field bytes_field(std::uint64_t bytes);
// A sampler of FEEDLANE_SAMPLER_`kind`, which the caller owns. Ends the program if it cannot be created.
feedlane_sampler* sampler(std::int32_t kind, std::int64_t length);
feedlane_sampler* sequential(std::int64_t length);

// A trainer: epochs through a loader of one field.
class Epochs {
 public:
  Epochs();
  Epochs(const Epochs&) = delete;
  Epochs& operator=(const Epochs&) = delete;
  ~Epochs();

  // Before anything else. Of each batch only the first `touched` bytes are looked at.
  void open(const feedlane_loader_config& config, std::uint64_t touched = UINT64_MAX);
  // A whole epoch; one byte of every page is read. Batches a second, from the first one on.
  double epoch();
  // A whole epoch in which nothing but next + release counts, where the result was there: medians.
  struct Trainer {
    double wall_ns, cpu_ns;
  };
  Trainer trainer();
  // Where batches lie in this process: every slot that was seen in the first epoch.
  [[nodiscard]] std::vector<void*> slots() const { return {slots_.begin(), slots_.end()}; }

  [[nodiscard]] feedlane_loader* loader() const { return loader_; }

  void begin();
  // The next batch, touched and released; false at the end.
  bool take();
  // Returns when no worker looks for work any more.
  void wait_until_workers_sleep() const;

 private:
  void touch_batch() const;

  feedlane_loader* loader_ = nullptr;
  feedlane_error error_;
  feedlane_batch batch_;
  std::uint64_t touched_ = 0;
  std::int64_t epoch_ = 0;
  std::set<void*> slots_;
};

struct BatchOptions {
  std::uint64_t bytes = 0;  // of a batch
  std::int32_t workers = 1;
  std::int64_t batches = 0;  // of an epoch
  std::int32_t prefetch = 2;
  std::int32_t start = FEEDLANE_START_FORK;
  std::uint64_t copied = UINT64_MAX;  // of a batch, from its start: what a worker writes
  feedlane_pool* pinned = nullptr;    // registers slots, or has the buffers that batches are staged in
  std::int32_t held = 0;              // batches that the trainer holds at the same time; 0: one
  std::int32_t staged = 0;            // buffers of the pool for staging; 0: slots are registered
};

class Batches : public Epochs {
 public:
  explicit Batches(const BatchOptions& options);
};

// Reads a byte of every page.
void touch(const void* data, std::uint64_t bytes);

// `copiers` threads, where the workers' processors are, copy `bytes` from buffers of their own into `slots` in turn, `count`
// times together, beginning together: bytes a second. Threads, since forked processes don't get a loader's memory.
double copy_rate(const std::vector<void*>& slots, std::uint64_t bytes, std::int64_t count, std::int32_t copiers);
// The same with a reader: the calling thread reads a byte of every page of each copy, as a trainer does, before the slot is
// written again. Nothing is handed over but a count of copies, and one of reads. Each of them needs a processor: all spin.
double read_copy_rate(const std::vector<void*>& slots, std::uint64_t bytes, std::int64_t count, std::int32_t copiers);

// What a worker of the loader above runs when this program is started as one (FEEDLANE_START_SPAWN).
int work_as_spawned(int fd);

}  // namespace bench
