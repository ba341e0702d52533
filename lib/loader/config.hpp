// SPDX-License-Identifier: Apache-2.0
// A loader's configuration.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "dataset/runner.hpp"
#include "feedlane/loader.h"
#include "os/limits.hpp"
#include "os/placement.hpp"
#include "sampler/sampler.hpp"
#include "supervisor/settings.hpp"
#include "tensors/fields.hpp"

namespace feedlane::loader {

// A loader's configuration, checked and copied, with every default filled in.
struct Config : supervisor::Settings {
  std::unique_ptr<sampler::Sampler> sampler;  // nullptr: iterable
  bool has_dataset = false;                   // inline, fork, thread
  feedlane_dataset table{};
  dataset::DatasetRunner dataset;  // inline
  tensors::Fields fields;
  std::vector<feedlane_field> declared;  // `fields` in the caller's form
  std::int64_t epoch_batches = -1;       // of a complete epoch, once the sampler is known; -1: unknown
  std::int64_t batch_size = 1;           // most rows of a batch
  bool unbatched = false;
  bool drop_last = false;
  bool iterable = false;
  bool deterministic = false;
  std::int64_t iterable_length = 0;
  std::uint32_t world = 1;  // ranks that share an iterable data set
  std::uint32_t rank = 0;
  std::int64_t max_batches = INT64_MAX;  // per epoch
  bool out_of_order = false;
  bool round_robin = false;
  std::uint64_t seed = 0;
  bool has_seed = false;
  std::uint32_t prefetch_factor = 2;  // the most, if chooses_prefetch
  bool chooses_prefetch = false;
  bool keep_workers = false;
  std::uint32_t held = 1;
  std::vector<std::byte> worker_config;
  std::uint32_t max_kills_per_batch = 0;
  std::vector<std::byte> state;  // to resume from
  std::uint64_t slot_bytes = 0;  // 0: computed from the fields
  std::uint64_t arena_bytes = 0;
  os::NumberSet memory_nodes;  // for the slots; empty: the kernel decides
  std::uint32_t retries = 0;
  std::int64_t retry_backoff_ns = 0;
  bool substitute = false;
  std::int64_t skip_budget = 0;  // INT64_MAX: unlimited
  bool is_pinned = false;
  std::string name;         // shown by monitors
  std::uint32_t trace = 0;  // batches that the trace keeps; 0: no trace
  std::int32_t share = FEEDLANE_SHARE_NONE;
  std::uint32_t consumers = 0;  // places of a shared loader
  std::string share_path;       // empty: none
  bool share_tail = false;
  std::uint32_t staged = 0;  // buffers of the pool; 0: the arena itself, if is_pinned

  // Whether the library starts the workers, so that it can also replace them.
  [[nodiscard]] bool starts_workers() const { return start == FEEDLANE_START_SPAWN || start == FEEDLANE_START_FORK; }
  // Whether workers record samples that failed.
  [[nodiscard]] bool has_policies() const { return retries != 0 || substitute || skip_budget != 0; }
  // Shards of an iterable data set: one per worker.
  [[nodiscard]] std::uint32_t shards() const { return workers == 0 ? 1 : workers; }
  // The number of batches that this many samples make.
  [[nodiscard]] std::int64_t batches_of(std::int64_t samples) const {
    return samples / batch_size + (samples % batch_size != 0 && !drop_last ? 1 : 0);
  }
  // The worker that made a batch, as errors and batches report it; -1: this thread.
  [[nodiscard]] std::int32_t maker_of(std::uint32_t worker) const {
    return workers == 0 ? -1 : static_cast<std::int32_t>(worker);
  }
  // One slot per batch in flight, one per held batch, and a spare, which keeps the window full if a batch is yielded
  // just before the previous one is released. One more per worker thread with a deadline, because it may hang while it
  // uses a slot.
  [[nodiscard]] std::uint32_t slots() const { return window() + slots_beside(); }
  // Slots in addition to the window's.
  [[nodiscard]] std::uint32_t slots_beside() const {
    return least_slots() + (start == FEEDLANE_START_THREAD && has_task_timeout() ? workers : 0);
  }
  // With fewer slots, held batches would keep the next batch from being made. One more than all consumers together may
  // hold, plus those of a round, which FEEDLANE_SHARE_DEAL gathers before it deals them.
  [[nodiscard]] std::uint32_t least_slots() const {
    return std::max(consumers, 1U) * held + (share == FEEDLANE_SHARE_DEAL ? consumers : 0) + 1;
  }
  // Whether the kernel forbids punching holes into memory that is registered or shared with consumers. That is possible
  // if workers are forked or threads, which need no separate mapping. Otherwise memory is restored afterwards: see
  // SlotMemory.
  [[nodiscard]] bool forbids_holes() const {
    const bool is_mapped_once = start == FEEDLANE_START_FORK || start == FEEDLANE_START_THREAD;
    return workers != 0 && is_mapped_once && (share != FEEDLANE_SHARE_NONE || (is_pinned && staged == 0));
  }
  // The most batches in flight: requested and not yet yielded.
  [[nodiscard]] std::uint32_t window() const { return workers * prefetch_factor; }
};

// Checks that the processors and memory nodes of `config` exist and that this process may use the nodes. E_ARGUMENT,
// E_UNSUPPORTED.
Status check_placement(const Config& config, const os::SystemFiles& files, Error& error);

// `sampler` is the object behind config->sampler.
Status read_config(const feedlane_loader_config* config, const sampler::Sampler* sampler, Config& out, Error& error);

}  // namespace feedlane::loader
