// SPDX-License-Identifier: Apache-2.0
// A data set that does what a plan says: the same inline and in worker processes. The plan is the worker configuration.
#pragma once

#include <cstdint>

#include "api.hpp"

namespace feedlane::test {

// Travels as bytes; every number is "nothing of the kind" as it stands here.
struct Plan {
  std::uint64_t magic = 0x4e414c5046454544;
  std::int32_t report_fd = -1;       // gets a Report of each open, sample and close
  std::int32_t gate_fd = -1;         // sample `gate_index` waits for it
  std::int64_t gate_index = -1;      // -2: every sample
  std::int64_t fail_index = -1;      // this sample fails ...
  std::int64_t traceback_bytes = 0;  // ... with a traceback of so many bytes
  std::int32_t transient = 0;
  std::int32_t end_signal = 0;  // how sample `end_index` ends its process: a signal, 0: exit(3)
  std::int64_t end_index = -1;
  std::int64_t end_step = 0;      // and every so many samples after it; 0: only it
  std::int64_t end_attempts = 0;  // only in attempts below
  std::int32_t fail_open = -1;    // this worker can't open its data set, -2: none can
  std::int32_t nest = 0;          // 1: opening tries to make a loader with workers
  std::int32_t ignore_sigterm = 0;
  std::int32_t gate_open = 0;  // 1: opening waits for the gate too, 2: that of worker 1 alone
  std::int32_t stuck_fd = -1;  // in epoch 0 these samples are read from it, which may take for ever: `stuck_count` ...
  std::int64_t stuck_index = -1;  // ... from this one on ...
  std::int64_t stuck_count = 1;
  std::int64_t stuck_attempts = 1;  // ... only in attempts below
  std::int32_t stuck_worker = -1;   // and by this worker, -1: by any
};

constexpr const char* fail_text = "sample is damaged";
constexpr const char* fail_open_text = "no such data set";

// What fields of these names hold, each an int64 unless stated: index, seed (uint64), pid, group (of processes),
// worker, generation, attempt, epoch, batch, omp (OMP_NUM_THREADS, -1 if not set), config (a checksum of the worker
// configuration), nested (what a loader with workers was answered), noise (any number of bytes, from index and seed).
feedlane_dataset scripted_dataset();
// The same by the whole batch.
feedlane_dataset scripted_fetch_dataset();
// Iterable: each shard, or inline the whole, has so many samples; the index is the sample's number in it.
constexpr std::int64_t scripted_shard_length = 20;
feedlane_dataset scripted_shard_dataset();

std::int64_t checksum(const void* bytes, std::uint64_t count);

}  // namespace feedlane::test
