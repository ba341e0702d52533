// SPDX-License-Identifier: Apache-2.0
/** @file loader.hpp The trainer's side: options, loader, batches. */
#pragma once

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

#include "sampler.hpp"
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

/** An aggregate for designated initialisers; what is left out is the default of feedlane_loader_config. */
struct LoaderOptions {
  const Sampler* sampler = nullptr;           /**< required; copied */
  std::vector<Field> fields{};                /**< required */
  std::int64_t batch_size = 1;                /**< rows */
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
  /** What the sampler yielded for it. */
  [[nodiscard]] std::span<const std::int64_t> indices() const { return {batch_.indices, rows()}; }
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
  }
  /** Check `error`: a loader that wasn't made refuses everything. */
  Loader(const LoaderOptions& options, Error& error) : handle_(create(options, error)) {}
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

  /** `for (auto& batch : loader)` runs the next epoch: 0, then 1, or the one after start_epoch's. Each batch is released when
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

  feedlane_loader* handle_ = nullptr;
  Error error_;
  std::int64_t next_epoch_ = 0;
  std::int32_t outcome_ = FEEDLANE_OK;
};

inline feedlane_loader* Loader::create(const LoaderOptions& o, Error& error) {
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
  c.fields = fields.data();
  c.field_count = fields.size();
  c.batch_size = o.batch_size == 0 ? -1 : o.batch_size;  // here 1 is the default, 0 a mistake
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
  feedlane_loader* loader = nullptr;
  detail::checked(error, [&](feedlane_error* e) { return feedlane_loader_create(&c, &loader, e); });
  return loader;
}

}  // namespace v1
}  // namespace feedlane
