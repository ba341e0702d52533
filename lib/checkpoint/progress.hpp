// SPDX-License-Identifier: Apache-2.0
// How far an epoch has come, as of one batch that was yielded: what a checkpoint of the model after it must hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace feedlane::checkpoint {

// Shared between the records of many batches. Empty pointer: none.
using Blob = std::shared_ptr<const std::vector<std::byte>>;

// A batch that was yielded, and its place in the sampler's order.
struct YieldedBatch {
  std::int64_t batch = 0;
  std::uint32_t rows = 0;
  std::uint32_t wanted = 0;  // rows of a complete batch
  Blob sampler_state;
  bool is_drawn = true;  // false: yielded before a resume, and where its sampler stands behind it isn't known yet
};

// An iterable data set's share of one worker.
struct ShardProgress {
  std::uint64_t taken = 0;  // samples, by the batches that were yielded
  bool ended = false;
  Blob state;  // what the data set saved with the last of them
};

struct Progress {
  std::int64_t epoch = -1;  // none has begun
  bool ended = false;
  std::int64_t batches = 0;    // map style: all before this one were yielded; iterable: yielded
  std::int64_t positions = 0;  // map style: indices of those; iterable: samples yielded
  // The same with every batch counted as complete: ranks whose last batches differ in size stand at the same place.
  std::int64_t wanted = 0;
  std::uint64_t skipped = 0;        // samples left out in this epoch
  std::vector<YieldedBatch> ahead;  // out of order: yielded beyond `batches`
  Blob sampler_state;               // after `batches`, of a sampler that can't be asked later
  std::vector<ShardProgress> shards;
  std::uint32_t next_shard = 0;

  // Takes a batch as yielded, in the sampler's order or not.
  void yield(const YieldedBatch& batch);
  [[nodiscard]] bool has(std::int64_t batch) const;
  // Of a batch that was yielded before the run was resumed.
  void set_sampler_state(std::int64_t batch, Blob state);

 private:
  void close_up();
};

}  // namespace feedlane::checkpoint
