// SPDX-License-Identifier: Apache-2.0
// A loader's configuration: checked, with every default filled in.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arena/fields.hpp"
#include "base/error.hpp"
#include "dataset/runner.hpp"
#include "feedlane/loader.h"
#include "os/limits.hpp"
#include "os/placement.hpp"
#include "sampler/sampler.hpp"
#include "supervisor/settings.hpp"

namespace feedlane::loader {

// A loader's configuration, checked, copied, with every default filled in.
struct Config : supervisor::Settings {
  std::unique_ptr<sampler::Sampler> sampler;  // none: iterable
  bool has_dataset = false;                   // inline, fork, thread
  feedlane_dataset table{};
  dataset::DatasetRunner dataset;  // inline
  arena::Fields fields;
  std::vector<feedlane_field> declared;  // the same in the caller's form
  std::int64_t epoch_batches = -1;       // of a whole epoch, once the sampler is known; -1: unknown
  std::int64_t batch_size = 1;           // rows of a batch at most
  bool unbatched = false;
  bool drop_last = false;
  bool iterable = false;
  bool deterministic = false;
  std::int64_t iterable_length = 0;
  std::uint32_t world = 1;  // ranks that share an iterable data set
  std::uint32_t rank = 0;
  std::int64_t max_batches = INT64_MAX;  // of an epoch
  bool out_of_order = false;
  bool round_robin = false;
  std::uint64_t seed = 0;
  bool has_seed = false;
  std::uint32_t prefetch_factor = 2;  // at most, if it is chosen
  bool chooses_prefetch = false;
  bool keep_workers = false;
  std::uint32_t held = 1;
  std::vector<std::byte> worker_config;
  std::uint32_t max_kills_per_batch = 0;
  std::vector<std::byte> state;  // to go on from
  std::uint64_t slot_bytes = 0;  // 0: worked out of the fields
  std::uint64_t arena_bytes = 0;
  os::NumberSet memory_nodes;  // that the slots come from; empty: as the kernel decides
  std::uint32_t retries = 0;
  std::int64_t retry_backoff_ns = 0;
  bool substitute = false;
  std::int64_t skip_budget = 0;  // INT64_MAX: no bound
  bool is_pinned = false;
  std::string name;         // shown by monitors
  std::uint32_t trace = 0;  // batches that the trace keeps; 0: there is none
  std::int32_t share = FEEDLANE_SHARE_NONE;
  std::uint32_t consumers = 0;  // places of a shared loader
  std::string share_path;       // empty: none
  bool share_tail = false;
  std::uint32_t staged = 0;  // buffers of the pool; 0: the arena itself is registered, if anything is

  // Workers that the library starts, and so can start again.
  [[nodiscard]] bool starts_workers() const { return start == FEEDLANE_START_SPAWN || start == FEEDLANE_START_FORK; }
  // Whether workers leave records of samples that failed.
  [[nodiscard]] bool has_policies() const { return retries != 0 || substitute || skip_budget != 0; }
  // An iterable data set's, one a worker.
  [[nodiscard]] std::uint32_t shards() const { return workers == 0 ? 1 : workers; }
  // How many batches so many samples make.
  [[nodiscard]] std::int64_t batches_of(std::int64_t samples) const {
    return samples / batch_size + (samples % batch_size != 0 && !drop_last ? 1 : 0);
  }
  // Which worker made a batch, for errors and batches; -1: this thread.
  [[nodiscard]] std::int32_t maker_of(std::uint32_t worker) const {
    return workers == 0 ? -1 : static_cast<std::int32_t>(worker);
  }
  // A slot for every batch asked for and for every one held, and a spare: a batch that is yielded just before the old one is
  // released leaves the window full. And one for each thread that may hang with another in its hands.
  [[nodiscard]] std::uint32_t slots() const { return window() + slots_beside(); }
  // Those that the window does not count.
  [[nodiscard]] std::uint32_t slots_beside() const {
    return least_slots() + (start == FEEDLANE_START_THREAD && has_task_timeout() ? workers : 0);
  }
  // Without so many, batches that are held would keep the next one from being made: one more than may be held, by all consumers
  // together, and than a round has that is gathered before it is dealt.
  [[nodiscard]] std::uint32_t least_slots() const {
    return std::max(consumers, 1U) * held + (share == FEEDLANE_SHARE_DEAL ? consumers : 0) + 1;
  }
  // Forked workers and threads need no mapping of their own. So nobody else can write to registered memory, or to what consumers
  // have a descriptor of. Elsewhere memory is only restored afterwards, and then it can be given back: see SlotMemory.
  [[nodiscard]] bool forbids_holes() const {
    const bool is_mapped_once = start == FEEDLANE_START_FORK || start == FEEDLANE_START_THREAD;
    return workers != 0 && is_mapped_once && (share != FEEDLANE_SHARE_NONE || (is_pinned && staged == 0));
  }
  // Batches asked for and not yet yielded, at most.
  [[nodiscard]] std::uint32_t window() const { return workers * prefetch_factor; }
};

// Whether there are the processors and memory nodes that it names, and this process may use the latter. E_ARGUMENT,
// E_UNSUPPORTED.
Status check_placement(const Config& config, const os::SystemFiles& files, Error& error);

// `sampler` is what config->sampler stands for.
Status read_config(const feedlane_loader_config* config, const sampler::Sampler* sampler, Config& out, Error& error);

}  // namespace feedlane::loader
