// SPDX-License-Identifier: Apache-2.0
// The progress of an epoch after a yielded batch, which a model's checkpoint at that point must contain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace feedlane::checkpoint {

// Shared between the entries of many batches. A null pointer means that there is none.
using Blob = std::shared_ptr<const std::vector<std::byte>>;

// A yielded batch and its position in the sampler's order.
struct YieldedBatch {
  std::int64_t batch = 0;
  std::uint32_t rows = 0;
  std::uint32_t wanted = 0;  // rows of a complete batch
  Blob sampler_state;
  bool is_drawn = true;  // false: yielded before a resume; the sampler's state after it isn't known yet
};

// The progress of one worker's shard of an iterable data set.
struct ShardProgress {
  std::uint64_t taken = 0;  // samples in yielded batches
  bool ended = false;
  Blob state;  // saved by the data set with the last of these batches
};

struct Progress {
  std::int64_t epoch = -1;  // -1: none has begun
  bool ended = false;
  std::int64_t batches = 0;  // map-style: all batches before this one were yielded; iterable: number of yielded batches
  std::int64_t positions = 0;  // map-style: indices in these batches; iterable: yielded samples
  // Like `positions`, but counts every batch as complete. So it is equal on ranks whose last batches differ in size.
  std::int64_t wanted = 0;
  std::uint64_t skipped = 0;        // samples skipped in this epoch
  std::vector<YieldedBatch> ahead;  // batches after `batches` that were yielded out of order, last first
  Blob sampler_state;               // at `batches`, of a sampler that isn't seekable
  std::vector<ShardProgress> shards;
  std::uint32_t next_shard = 0;

  // Records a yielded batch, in the sampler's order or not.
  void yield(const YieldedBatch& batch);
  [[nodiscard]] bool has(std::int64_t batch) const;
  // Sets the sampler's state after a batch that was yielded before the resume.
  void set_sampler_state(std::int64_t batch, Blob state);

 private:
  void close_up();
};

}  // namespace feedlane::checkpoint
