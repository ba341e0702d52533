// SPDX-License-Identifier: Apache-2.0
// A loader whose workers copy batches of one size from a buffer of their own into their slots, and its trainer.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "measure.hpp"

namespace bench {

struct BatchOptions {
  std::uint64_t bytes = 0;  // of a batch
  std::int32_t workers = 1;
  std::int64_t batches = 0;  // of an epoch
  std::int32_t prefetch = 2;
  std::int32_t start = FEEDLANE_START_FORK;
  std::uint64_t copied = UINT64_MAX;  // of a batch, from its start: what a worker writes
};

class Batches {
 public:
  explicit Batches(const BatchOptions& options);
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;
  ~Batches();

  // A whole epoch; one byte of every page is read. Batches a second, from the first one on.
  double epoch();
  // The median of next + release where the result was there: ns.
  double trainer_ns();
  // Where batches lie in this process: every slot that was seen.
  [[nodiscard]] std::vector<void*> slots() const { return {slots_.begin(), slots_.end()}; }

  feedlane_loader* handle() { return loader_; }
  void begin();
  // The next batch, touched and released; false at the end.
  bool take();

 private:
  BatchOptions options_;
  feedlane_loader* loader_ = nullptr;
  feedlane_error error_;
  feedlane_batch batch_;
  std::int64_t epoch_ = 0;
  std::set<void*> slots_;
};

// Reads a byte of every page.
void touch(const void* data, std::uint64_t bytes);

// Copies `bytes` from a buffer of its own into each of `slots` by turns, `count` times: bytes a second.
double copy_rate(const std::vector<void*>& slots, std::uint64_t bytes, std::int64_t count);

// What a worker of the loader above runs when this program is started as one (FEEDLANE_START_SPAWN).
int work_as_spawned(int fd);

}  // namespace bench
