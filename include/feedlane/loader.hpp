// SPDX-License-Identifier: Apache-2.0
/** @file loader.hpp The trainer's side: options, loader, batches. */
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pool.hpp"
#include "sampler.hpp"
#include "state.hpp"
#include "tensor.hpp"

namespace feedlane {
inline namespace v1 {

/** Who makes the workers. */
enum class Start : std::int32_t {
  spawn = FEEDLANE_START_SPAWN,       /**< the library starts argv, or this program again */
  fork = FEEDLANE_START_FORK,         /**< the library forks this process: `dataset` runs in the children */
  thread = FEEDLANE_START_THREAD,     /**< the host's threads, with Loader::run_local */
  external = FEEDLANE_START_EXTERNAL, /**< the host, with Loader::open_worker */
};

/** Which worker gets a batch. */
enum class Dispatch : std::int32_t {
  least_loaded = FEEDLANE_DISPATCH_LEAST_LOADED, /**< the one with the fewest unfinished tasks */
  round_robin = FEEDLANE_DISPATCH_ROUND_ROBIN,   /**< batch i goes to worker i mod workers */
};

/** A batch_size: one index a task, tensors without a batch dimension. */
inline constexpr std::int64_t unbatched = FEEDLANE_UNBATCHED;

/** An aggregate for designated initialisers; what is left out is the default of feedlane_loader_config. */
struct LoaderOptions {
  const Sampler* sampler = nullptr;           /**< required, but null if iterable; copied */
  std::vector<Field> fields{};                /**< may be empty with slot_bytes: the data set shapes all tensors */
  std::optional<std::int64_t> batch_size{};   /**< rows, or `unbatched`; nothing: 1, or as a batch sampler says */
  bool drop_last = false;                     /**< no incomplete last batch */
  std::optional<std::uint64_t> seed{};        /**< the base seed; nothing: drawn from the system */
  const feedlane_dataset* dataset = nullptr;  /**< inline, fork and thread: see dataset_of in worker.hpp */
  int workers = 0;                            /**< 0: the data set runs inline, in the caller of next */
  Start start = Start::spawn;                 /**< who makes them */
  int prefetch_factor = 0;                    /**< batches in flight per worker; 0: 2 */
  bool keep_workers = false;                  /**< they outlive the epoch */
  int held = 0;                               /**< batches held at once; 0: 1 */
  std::vector<std::string> argv{};            /**< spawn; empty: this program again */
  std::span<const std::byte> worker_config{}; /**< handed to every worker as it is; copied */
  std::chrono::nanoseconds start_timeout{0};  /**< from start to attach; 0: 60 s */
  std::chrono::nanoseconds stop_timeout{0};   /**< from the done-event to SIGTERM; 0: 5 s */
  std::chrono::nanoseconds term_timeout{0};   /**< from SIGTERM to SIGKILL; 0: 1 s */
  int max_restarts = 0;                       /**< replacements of dead workers; 0: 1000; -1: none */
  int max_kills_per_batch = 0;                /**< deaths after which a batch is given up; 0: 3 */
  bool no_lifeline = false; /**< the trainer's death doesn't kill workers: they end with their next task */

  bool iterable = false;                      /**< no sampler, each worker iterates a shard of its own */
  bool deterministic = false;                 /**< iterable: a shard opened again yields the same samples */
  std::int64_t iterable_length = 0;           /**< iterable: samples expected, for length(); 0: unknown */
  bool out_of_order = false;                  /**< batches are yielded as they arrive */
  Dispatch dispatch = Dispatch::least_loaded; /**< which worker gets a batch */

  std::uint64_t slot_bytes = 0;  /**< of a slot, for tensors shaped by the data set and metadata; 0: little room */
  std::uint64_t arena_bytes = 0; /**< budget for the slots' reserved memory; 0: none */

  int retries = 0;                           /**< further tries of a sample whose error is Transient */
  std::chrono::nanoseconds retry_backoff{0}; /**< before the first, twice as long before each further one; 0: 10 ms */
  bool substitute = false;                   /**< the data set's substitute() names another sample in its place */
  std::int64_t skip_budget = 0;              /**< samples of an epoch that may be left out; -1: any number */

  const Pool* pinned = nullptr; /**< registers the slots; must outlive the loader and its batches */
  int staged = 0;               /**< so many of its buffers instead, filled by the thread in Loader::run_stager */

  std::chrono::nanoseconds task_timeout{0}; /**< a worker stuck in a task for so long is replaced; 0: no deadline */

  std::span<const std::byte> state{}; /**< of Loader::state: the loader goes on behind it; copied */
};

/** A batch in the trainer's hands, released on destruction. Move-only; may outlive its loader. */
class Batch {
 public:
  /** `other` holds nothing after. */
  Batch(Batch&& other) noexcept : loader_(std::exchange(other.loader_, nullptr)), batch_(other.batch_) {}
  /** Exchanges the two. */
  Batch& operator=(Batch&& other) noexcept {
    std::swap(loader_, other.loader_);
    std::swap(batch_, other.batch_);
    return *this;
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() { release(); }

  /** Before the end of its scope; the tensors are gone after. */
  void release() noexcept {
    if (loader_ != nullptr) (void)feedlane_batch_release(loader_, batch_.token);
    loader_ = nullptr;
  }

  /** As it was started. */
  [[nodiscard]] std::int64_t epoch() const { return batch_.epoch; }
  /** Its number in the epoch, from 0. */
  [[nodiscard]] std::int64_t index() const { return batch_.batch; }
  /** The number of samples. */
  [[nodiscard]] std::size_t rows() const { return static_cast<std::size_t>(batch_.count); }
  /** Who made it; -1: inline. */
  [[nodiscard]] int worker() const { return batch_.worker; }
  /** Which attempt made it, from 0. */
  [[nodiscard]] int attempt() const { return batch_.attempt; }
  /** What its rows are; empty: iterable. */
  [[nodiscard]] std::span<const std::int64_t> indices() const {
    return {batch_.indices, batch_.indices == nullptr ? 0 : rows()};
  }
  /** Indices that were left out, see LoaderOptions::skip_budget; empty: iterable. */
  [[nodiscard]] std::span<const std::int64_t> skipped() const {
    return {batch_.skipped, batch_.skipped == nullptr ? 0 : skipped_count()};
  }
  /** The number of samples that were left out. */
  [[nodiscard]] std::size_t skipped_count() const { return static_cast<std::size_t>(batch_.skipped_count); }
  /** What the data set gave along, see Task::metadata. */
  [[nodiscard]] std::span<const std::byte> metadata() const {
    return {static_cast<const std::byte*>(batch_.metadata), static_cast<std::size_t>(batch_.metadata_bytes)};
  }
  /** What names it to the C interface: one of its references is this object's. */
  [[nodiscard]] std::uint64_t token() const { return batch_.token; }
  /** The number of tensors. */
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(batch_.tensor_count); }
  /** Throws E_ARGUMENT beyond the last. */
  [[nodiscard]] Tensor operator[](std::size_t i) const {
    if (i < size()) return Tensor(batch_.tensors[i]);
    Error error;
    error.refuse("tensor", static_cast<std::int64_t>(i), static_cast<std::int64_t>(size()),
                 "the batch has no such tensor");
    throw error;
  }
  /** By name; throws E_ARGUMENT if there is none. */
  [[nodiscard]] Tensor operator[](std::string_view name) const {
    for (std::size_t i = 0; i < size(); i++)
      if (name == batch_.tensors[i].name) return Tensor(batch_.tensors[i]);
    Error error;
    error.refuse("tensor", -1, static_cast<std::int64_t>(size()),
                 "the batch has no tensor '" + std::string(name) + "'");
    throw error;
  }
  /** Enqueues a copy of a tensor to device memory, of which there are `bytes`. Throws. */
  void to_device(std::size_t i, void* device_memory, std::uint64_t bytes, void* stream) const {
    const auto number = static_cast<std::int32_t>(std::min<std::size_t>(i, INT32_MAX));
    detail::checked([&](feedlane_error* e) {
      return feedlane_batch_to_device(loader_, batch_.token, number, device_memory, bytes, stream, e);
    });
  }
  /** Released when the stream has come so far: this holds nothing after. Throws, and still holds it then. */
  void release_on(void* stream) {
    detail::checked([&](feedlane_error* e) { return feedlane_batch_release_on(loader_, batch_.token, stream, e); });
    loader_ = nullptr;
  }
  /** A tensor for another library, where it lies: it keeps the batch until its deleter is called. The caller's, as DLPack has
   *  it. Throws E_ARGUMENT beyond the last. */
  [[nodiscard]] DLManagedTensorVersioned* dlpack(std::size_t i) const {
    DLManagedTensorVersioned* out = nullptr;
    const auto number = static_cast<std::int32_t>(std::min<std::size_t>(i, INT32_MAX));
    detail::checked(
        [&](feedlane_error* e) { return feedlane_batch_dlpack(loader_, batch_.token, number, 0, &out, e); });
    return out;
  }
  /** The same, for the C interface; its reference stays this object's. */
  [[nodiscard]] const feedlane_batch& c() const { return batch_; }

 private:
  friend class Loader;
  Batch(feedlane_loader* loader, const feedlane_batch& batch) : loader_(loader), batch_(batch) {}
  feedlane_loader* loader_;
  feedlane_batch batch_;
};

/** One thread at a time, but interrupt, run_local, statistics and events. */
class Loader {
 public:
  /** Reserves all memory; workers start with the first epoch. Throws. */
  explicit Loader(const LoaderOptions& options) {
    Error error;
    handle_ = create(options, error);
    if (error) throw error;
    resume(options.state);
  }
  /** Check `error`: a loader that wasn't made refuses everything. */
  Loader(const LoaderOptions& options, Error& error) : handle_(create(options, error)) {
    if (!error) resume(options.state);
  }
  /** `other` refuses everything after. */
  Loader(Loader&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)),
        error_(std::move(other.error_)),
        next_epoch_(other.next_epoch_) {}
  /** Exchanges the two. */
  Loader& operator=(Loader&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(error_, other.error_);
    std::swap(next_epoch_, other.next_epoch_);
    return *this;
  }
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  /** Ends the workers. Batches that are still held live on. */
  ~Loader() { (void)feedlane_loader_destroy(&handle_); }

  /** Starts an epoch; in mid-epoch the old one is abandoned. */
  void start_epoch(std::int64_t epoch) {
    start_epoch(epoch, error_);
    if (error_) throw error_;
  }
  /** The same; what went wrong is in `error`. */
  void start_epoch(std::int64_t epoch, Error& error) {
    detail::checked(error, [&](feedlane_error* e) { return feedlane_loader_begin(handle_, epoch, e); });
    if (!error) next_epoch_ = epoch + 1;
  }

  /** The epoch that a range-for loop runs: 0, or the one after start_epoch's, or where LoaderOptions::state goes on. */
  [[nodiscard]] std::int64_t next_epoch() const { return next_epoch_; }

  /** How far the epoch has come after the newest batch: for LoaderOptions::state, in another process too. A few hundred
   *  bytes. Throws. */
  [[nodiscard]] std::vector<std::byte> state() { return state_at(0); }
  /** After `batch`, which is still held: what a checkpoint of a model that has learned from it must hold. Throws. */
  [[nodiscard]] std::vector<std::byte> state(const Batch& batch) { return state_at(batch.token()); }

  /** The next batch; nothing at the end of the epoch. Throws; an error of one batch (E_SAMPLE, E_QUARANTINED) leaves the
   *  loader as it should be: the following call yields the following batch. Other outcomes than a batch or the end, which
   *  come with a timeout, signals and interrupt(), are told by `outcome()`. */
  std::optional<Batch> next(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) {
    std::optional<Batch> batch = next(timeout, error_);
    if (error_) throw error_;
    return batch;
  }
  /** The same; what went wrong is in `error`. */
  std::optional<Batch> next(std::chrono::nanoseconds timeout, Error& error) {
    feedlane_batch batch;
    feedlane_init(&batch, sizeof batch);
    outcome_ = detail::checked(
        error, [&](feedlane_error* e) { return feedlane_loader_next(handle_, timeout.count(), &batch, e); });
    if (outcome_ != FEEDLANE_OK) return std::nullopt;
    return Batch(handle_, batch);
  }
  /** What the last `next` returned: FEEDLANE_OK, _END, _TIMEOUT, _INTERRUPTED, _SLOTS_HELD or the error. */
  [[nodiscard]] std::int32_t outcome() const { return outcome_; }

  /** Ends the epoch and all workers, and waits for their ends. Throws. */
  void stop() {
    stop(error_);
    if (error_) throw error_;
  }
  /** The same; what went wrong is in `error`. */
  void stop(Error& error) {
    detail::checked(error, [&](feedlane_error* e) { return feedlane_loader_stop(handle_, e); });
  }
  /** Start::external: a connected socket for one worker process, the caller's to pass on and to close; nothing when no
   *  worker is missing. `id` is the worker wanted or -1 for any; it is written with the one it is. Throws. */
  [[nodiscard]] std::optional<int> open_worker(std::int32_t& id) {
    const std::optional<int> fd = open_worker(id, error_);
    if (error_) throw error_;
    return fd;
  }
  /** The same; what went wrong is in `error`. */
  [[nodiscard]] std::optional<int> open_worker(std::int32_t& id, Error& error) {
    std::int32_t fd = -1;
    const std::int32_t status =
        detail::checked(error, [&](feedlane_error* e) { return feedlane_loader_open_worker(handle_, &id, &fd, e); });
    if (status != FEEDLANE_OK) return std::nullopt;
    return fd;
  }
  /** Start::thread: the calling thread works with LoaderOptions::dataset until the trainer wants no more. False: no worker
   *  is missing. Any thread, but the call must have begun before the loader's destructor does. Throws. */
  bool run_local() {
    Error error;  // not the member: that one is the trainer's
    const bool worked = run_local(error);
    if (error) throw error;
    return worked;
  }
  /** The same; what went wrong is in `error`. */
  bool run_local(Error& error) {
    return detail::checked(error, [&](feedlane_error* e) { return feedlane_loader_run_local(handle_, e); }) ==
           FEEDLANE_OK;
  }
  /** LoaderOptions::staged: the calling thread copies batches until the loader is destroyed; the call must have begun before.
   *  Throws. */
  void run_stager() {
    detail::checked([&](feedlane_error* e) { return feedlane_loader_run_stager(handle_, e); });
  }
  /** Any thread, signal handlers too. */
  void interrupt() noexcept { (void)feedlane_loader_interrupt(handle_); }
  /** Batches in an epoch. */
  [[nodiscard]] std::int64_t length() const {
    std::int64_t batches = 0;
    (void)feedlane_loader_length(handle_, &batches);
    return batches;
  }
  /** The loader's counters. Any thread. */
  [[nodiscard]] feedlane_stats stats() const {
    feedlane_stats s;
    feedlane_init(&s, sizeof s);
    (void)feedlane_loader_stats(handle_, &s);
    return s;
  }
  /** Each worker's counters, by id. Any thread. */
  [[nodiscard]] std::vector<feedlane_worker_stats> worker_stats() const {
    std::vector<feedlane_worker_stats> all;
    feedlane_worker_stats s;
    feedlane_init(&s, sizeof s);
    for (std::int32_t w = 0; feedlane_loader_worker_stats(handle_, w, &s) == FEEDLANE_OK; w++) all.push_back(s);
    return all;
  }
  /** The oldest event not yet read; nothing when there is none. Any thread. */
  std::optional<feedlane_event> event() {
    feedlane_event e;
    feedlane_init(&e, sizeof e);
    if (feedlane_loader_event(handle_, &e) != FEEDLANE_OK) return std::nullopt;
    return e;
  }
  /** The handle, for the C interface; still owned by this. */
  [[nodiscard]] feedlane_loader* c() const { return handle_; }

  /** `for (auto& batch : loader)` runs next_epoch(). Each batch is released when
   *  the loop comes to the next, unless it was moved away. Errors throw; a signal or interrupt() throws too, as code 0 text
   *  "INTERRUPTED": a loop can't go on without a batch. */
  class iterator {
   public:
    /** @{ What the standard library asks of an input iterator. */
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Batch& operator*() const { return *current_; }
    Batch* operator->() const { return &*current_; }
    iterator& operator++() {
      current_.reset();
      current_ = loader_->next();
      if (!current_ && loader_->outcome() != FEEDLANE_END) throw Interrupted(loader_->outcome());
      return *this;
    }
    void operator++(int) { ++*this; }
    /** @} */
    friend bool operator==(const iterator& i, std::default_sentinel_t) { return !i.current_; }

   private:
    friend class Loader;
    explicit iterator(Loader& loader) : loader_(&loader) { ++*this; }
    Loader* loader_;
    mutable std::optional<Batch> current_;
  };
  /** Starts the next epoch and takes its first batch. */
  iterator begin() {
    start_epoch(next_epoch_);
    return iterator(*this);
  }
  /** Reached when the epoch has no more batches. */
  [[nodiscard]] static std::default_sentinel_t end() { return {}; }

  /** A range-for loop was ended by INTERRUPTED or SLOTS_HELD. */
  class Interrupted : public std::exception {
   public:
    /** Of that positive status. */
    explicit Interrupted(std::int32_t outcome) : outcome_(outcome) {}
    /** FEEDLANE_INTERRUPTED or FEEDLANE_SLOTS_HELD. */
    [[nodiscard]] std::int32_t outcome() const noexcept { return outcome_; }
    /** Its text. */
    [[nodiscard]] const char* what() const noexcept override { return feedlane_status_text(outcome_); }

   private:
    std::int32_t outcome_;
  };

 private:
  static feedlane_loader* create(const LoaderOptions& o, Error& error);
  std::vector<std::byte> state_at(std::uint64_t token) {
    return detail::saved([&](void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error* e) {
      return feedlane_loader_state(handle_, token, buffer, cap, bytes, e);
    });
  }
  void resume(std::span<const std::byte> state) {
    if (state.empty()) return;
    const StateInfo info = read_state(state);  // the loader has accepted it
    next_epoch_ = info.epoch + (info.ended ? 1 : 0);
  }

  feedlane_loader* handle_ = nullptr;
  Error error_;
  std::int64_t next_epoch_ = 0;
  std::int32_t outcome_ = FEEDLANE_OK;
};

inline feedlane_loader* Loader::create(const LoaderOptions& o, Error& error) {
  if (o.batch_size == 0) {  // to the C interface that would be the default
    error.refuse("batch_size", 0, 1, "batch_size is 0: at least 1");
    return nullptr;
  }
  std::vector<feedlane_field> fields;
  for (const Field& f : o.fields) {
    feedlane_field c{};
    c.size = sizeof c;
    c.name = f.name.c_str();
    c.dtype = f.dtype;
    c.ndim = static_cast<std::int32_t>(f.shape.size());  // beyond the largest it is refused, with this number
    for (std::size_t d = 0; d < f.shape.size() && d < FEEDLANE_MAX_NDIM; d++) c.shape[d] = f.shape[d];
    fields.push_back(c);
  }
  std::vector<const char*> argv;
  for (const std::string& a : o.argv) argv.push_back(a.c_str());
  argv.push_back(nullptr);
  feedlane_loader_config c;
  feedlane_init(&c, sizeof c);
  c.sampler = o.sampler == nullptr ? nullptr : o.sampler->c();
  c.dataset = o.dataset;
  c.fields = fields.empty() ? nullptr : fields.data();
  c.field_count = fields.size();
  c.batch_size = o.batch_size.value_or(0);
  c.drop_last = o.drop_last ? 1 : 0;
  c.has_seed = o.seed ? 1 : 0;
  c.seed = o.seed.value_or(0);
  c.workers = o.workers;
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
  c.retries = o.retries;
  c.retry_backoff_ns = o.retry_backoff.count();
  c.substitute = o.substitute ? 1 : 0;
  c.skip_budget = o.skip_budget;
  c.task_timeout_ns = o.task_timeout.count();
  c.pinned = o.pinned == nullptr ? nullptr : o.pinned->c();
  c.staged = o.staged;
  c.state = o.state.empty() ? nullptr : o.state.data();
  c.state_bytes = o.state.size();
  feedlane_loader* loader = nullptr;
  detail::checked(error, [&](feedlane_error* e) { return feedlane_loader_create(&c, &loader, e); });
  return loader;
}

}  // namespace v1
}  // namespace feedlane
