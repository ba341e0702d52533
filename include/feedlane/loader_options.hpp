// SPDX-License-Identifier: Apache-2.0
/** @file loader_options.hpp The configuration of a loader. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "error.hpp"
#include "pool.hpp"
#include "sampler.hpp"
#include "tensor.hpp"

namespace feedlane {
inline namespace v1 {

/** How workers are started. */
enum class Start : std::int32_t {
  spawn = FEEDLANE_START_SPAWN,       /**< the library starts `argv`, or this program again */
  fork = FEEDLANE_START_FORK,         /**< the library forks this process: `dataset` runs in the children */
  thread = FEEDLANE_START_THREAD,     /**< the host calls Loader::run_worker in its threads */
  external = FEEDLANE_START_EXTERNAL, /**< the host starts processes, each with a socket from Loader::open_worker */
  host = FEEDLANE_START_HOST,         /**< as external, for processes that the host starts at once */
};

/** Which worker gets a batch. */
enum class Dispatch : std::int32_t {
  least_loaded = FEEDLANE_DISPATCH_LEAST_LOADED, /**< the worker with the fewest unfinished tasks */
  round_robin = FEEDLANE_DISPATCH_ROUND_ROBIN,   /**< batch i goes to worker i mod workers */
};

/** Which consumers get the batches of a shared loader. */
enum class Share : std::int32_t {
  none = FEEDLANE_SHARE_NONE,   /**< not shared: the loader's own next yields all batches */
  every = FEEDLANE_SHARE_EVERY, /**< every consumer gets every batch */
  deal = FEEDLANE_SHARE_DEAL,   /**< batch k goes to consumer k mod consumers */
};

/** A value of batch_size: each task has one sample, and tensors have no batch dimension. */
inline constexpr std::int64_t unbatched = FEEDLANE_UNBATCHED;

/** A value of prefetch_factor: starts with 2 and grows while that shortens waits, within arena_bytes; see
 *  FEEDLANE_PREFETCH_AUTO. */
inline constexpr int prefetch_auto = FEEDLANE_PREFETCH_AUTO;

/** An aggregate for designated initialisers. The defaults are those of feedlane_loader_config. */
struct LoaderOptions {
  const Sampler* sampler = nullptr;           /**< required; null if iterable; copied */
  std::vector<Field> fields{};                /**< empty, with slot_bytes: the data set shapes all tensors */
  std::optional<std::int64_t> batch_size{};   /**< rows, or `unbatched`; nullopt: 1, or the batch sampler's size */
  bool drop_last = false;                     /**< drops an incomplete last batch */
  std::optional<std::uint64_t> seed{};        /**< the base seed; nullopt: drawn from the system */
  const feedlane_dataset* dataset = nullptr;  /**< for inline, fork and thread; see dataset_of in dataset.hpp */
  int workers = 0;                            /**< 0: the data set runs inline, in the thread that calls next */
  Start start = Start::spawn;                 /**< how workers are started */
  int prefetch_factor = 0;                    /**< batches in flight per worker; 0: 2; or prefetch_auto */
  bool keep_workers = false;                  /**< workers outlive an epoch */
  int held = 0;                               /**< batches that the trainer holds at once; 0: 1 */
  std::vector<std::string> argv{};            /**< spawn: a worker's command line; empty: this program again */
  std::span<const std::byte> worker_config{}; /**< passed to every worker unchanged; copied */
  std::chrono::nanoseconds start_timeout{0};  /**< from a worker's start until it attaches; 0: 60 s */
  std::chrono::nanoseconds stop_timeout{0};   /**< from the request to stop until SIGTERM; 0: 5 s */
  std::chrono::nanoseconds term_timeout{0};   /**< from SIGTERM until SIGKILL; 0: 1 s */
  int max_restarts = 0;                       /**< replacements of dead workers; 0: 1000; -1: none */
  int max_kills_per_batch = 0;                /**< worker deaths after which a batch is quarantined; 0: 3 */
  bool no_lifeline = false;                   /**< the trainer's death ends workers only after their current task */

  bool iterable = false;                      /**< no sampler: each worker iterates a shard */
  bool deterministic = false;                 /**< iterable: a reopened shard yields the same samples */
  std::int64_t iterable_length = 0;           /**< iterable: samples expected, for length(); 0: unknown */
  bool out_of_order = false;                  /**< batches are yielded as they arrive */
  Dispatch dispatch = Dispatch::least_loaded; /**< which worker gets a batch */

  std::uint64_t slot_bytes =
      0;                      /**< address space of a slot, for dynamic shapes and metadata; 0: the fields and 64 KiB */
  std::string worker_cpus{};  /**< spawn, fork: processors, "0-15", or one list per worker, "0-7;8-15"; empty: any */
  std::string memory_nodes{}; /**< nodes of the slots' memory, such as "1" or "0-1"; empty: as the kernel decides */
  std::uint64_t arena_bytes = 0; /**< limit for the slots' reserved memory; 0: no limit */

  int retries = 0;                           /**< retries of a sample whose error is Transient */
  std::chrono::nanoseconds retry_backoff{0}; /**< before the first retry, doubled for each further one; 0: 10 ms */
  bool substitute = false;                   /**< the data set's substitute() names a sample to use instead */
  std::int64_t skip_budget = 0;              /**< samples that may be skipped per epoch; -1: any number */

  const Pool* pinned = nullptr; /**< registers the slots; must outlive the loader and its batches; null: none */
  int staged = 0;               /**< batches go through this many buffers of the pool, see Loader::run_stager; 0: off */

  std::chrono::nanoseconds task_timeout{0}; /**< a worker without progress for this long is replaced; 0: no deadline */

  std::span<const std::byte> state{}; /**< from Loader::state: where the loader resumes; copied */

  std::string name{};      /**< shown by monitors, at most 63 bytes */
  std::uint64_t trace = 0; /**< number of newest batches that the trace keeps; 0: $FEEDLANE_TRACE, or no trace */

  int world = 0; /**< iterable: number of ranks that share the data set; 0: 1. See detect_rank in sampler.hpp */
  int rank = 0;  /**< iterable: 0 .. world - 1 */
  std::int64_t max_batches = 0; /**< the epoch ends after this many batches; 0: no limit */

  Share share = Share::none; /**< whether consumers in other processes take the batches, see share.hpp */
  int consumers = 0;         /**< number of consumers. Share::every: at most; Share::deal: exactly; 0: 1 */
  std::string share_path{};  /**< path of a Unix socket to create, through which consumers may join; empty: none */
  bool share_tail = false;   /**< Share::deal: if the last batches are too few for all, the first consumers get them */
};

namespace detail {

/** Creates a loader of the C interface. On failure nullptr, with the error in `error`. */
inline feedlane_loader* create_loader(const LoaderOptions& o, Error& error) {
  if (o.batch_size == 0) {  // in the C interface 0 selects the default
    error.refuse("batch_size", 0, 1, "batch_size is 0: must be at least 1");
    return nullptr;
  }
  const std::vector<feedlane_field> fields = c_fields(o.fields);
  std::vector<const char*> argv;
  for (const std::string& a : o.argv) argv.push_back(a.c_str());
  argv.push_back(nullptr);
  feedlane_loader_config c{};
  c.size = sizeof c;
  c.sampler = o.sampler == nullptr ? nullptr : o.sampler->c();
  c.dataset = o.dataset;
  c.fields = fields.empty() ? nullptr : fields.data();
  c.field_count = fields.size();
  c.batch_size = o.batch_size.value_or(0);
  c.drop_last = o.drop_last ? 1 : 0;
  c.has_seed = o.seed ? 1 : 0;
  c.seed = o.seed.value_or(0);
  c.workers = o.workers;
  c.name = o.name.empty() ? nullptr : o.name.c_str();
  c.trace = o.trace;
  c.world = o.world;
  c.rank = o.rank;
  c.max_batches = o.max_batches;
  c.start = static_cast<std::int32_t>(o.start);
  c.prefetch_factor = o.prefetch_factor;
  c.keep_workers = o.keep_workers ? 1 : 0;
  c.held = o.held;
  c.argv = o.argv.empty() ? nullptr : argv.data();
  c.worker_config = o.worker_config.data();
  c.worker_config_bytes = o.worker_config.size();
  c.start_timeout_ns = o.start_timeout.count();
  c.stop_timeout_ns = o.stop_timeout.count();
  c.term_timeout_ns = o.term_timeout.count();
  c.max_restarts = o.max_restarts;
  c.max_kills_per_batch = o.max_kills_per_batch;
  c.no_lifeline = o.no_lifeline ? 1 : 0;
  c.iterable = o.iterable ? 1 : 0;
  c.deterministic = o.deterministic ? 1 : 0;
  c.iterable_length = o.iterable_length;
  c.out_of_order = o.out_of_order ? 1 : 0;
  c.dispatch = static_cast<std::int32_t>(o.dispatch);
  c.slot_bytes = o.slot_bytes;
  c.arena_bytes = o.arena_bytes;
  c.worker_cpus = o.worker_cpus.empty() ? nullptr : o.worker_cpus.c_str();
  c.memory_nodes = o.memory_nodes.empty() ? nullptr : o.memory_nodes.c_str();
  c.retries = o.retries;
  c.retry_backoff_ns = o.retry_backoff.count();
  c.substitute = o.substitute ? 1 : 0;
  c.skip_budget = o.skip_budget;
  c.task_timeout_ns = o.task_timeout.count();
  c.pinned = o.pinned == nullptr ? nullptr : o.pinned->c();
  c.staged = o.staged;
  c.state = o.state.empty() ? nullptr : o.state.data();
  c.state_bytes = o.state.size();
  c.share = static_cast<std::int32_t>(o.share);
  c.consumers = o.consumers;
  c.share_path = o.share_path.empty() ? nullptr : o.share_path.c_str();
  c.share_tail = o.share_tail ? 1 : 0;
  feedlane_loader* loader = nullptr;
  checked(error, [&](feedlane_error* e) { return feedlane_loader_create(&c, &loader, e); });
  return loader;
}

}  // namespace detail

}  // namespace v1
}  // namespace feedlane

#endif
