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

enum class Start : std::int32_t {
  spawn = FEEDLANE_START_SPAWN,
  external = FEEDLANE_START_EXTERNAL,
};

/** An aggregate for designated initialisers; what is left out is the default of feedlane_loader_config. */
struct LoaderOptions {
  const Sampler* sampler = nullptr;
  std::vector<Field> fields{};
  std::int64_t batch_size = 1;
  bool drop_last = false;
  std::optional<std::uint64_t> seed{};
  const feedlane_dataset* dataset = nullptr; /**< inline only: see dataset_of in worker.hpp */
  int workers = 0;
  Start start = Start::spawn;
  int prefetch_factor = 0;
  bool keep_workers = false;
  int held = 0;
  std::vector<std::string> argv{};
  std::span<const std::byte> worker_config{};
  std::chrono::nanoseconds start_timeout{0};
  std::chrono::nanoseconds stop_timeout{0};
  std::chrono::nanoseconds term_timeout{0};
  int max_restarts = 0;
  int max_kills_per_batch = 0;
};

/** A batch in the trainer's hands, released on destruction. Move-only; may outlive its loader. */
class Batch {
 public:
  Batch(Batch&& other) noexcept : loader_(std::exchange(other.loader_, nullptr)), batch_(other.batch_) {}
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

  [[nodiscard]] std::int64_t epoch() const { return batch_.epoch; }
  [[nodiscard]] std::int64_t index() const { return batch_.batch; }
  [[nodiscard]] std::size_t rows() const { return static_cast<std::size_t>(batch_.count); }
  [[nodiscard]] int worker() const { return batch_.worker; }
  [[nodiscard]] int attempt() const { return batch_.attempt; }
  /** What the sampler yielded for it. */
  [[nodiscard]] std::span<const std::int64_t> indices() const { return {batch_.indices, rows()}; }
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
  [[nodiscard]] const feedlane_batch& c() const { return batch_; }

 private:
  friend class Loader;
  Batch(feedlane_loader* loader, const feedlane_batch& batch) : loader_(loader), batch_(batch) {}
  feedlane_loader* loader_;
  feedlane_batch batch_;
};

/** One thread at a time, but interrupt and statistics. */
class Loader {
 public:
  explicit Loader(const LoaderOptions& options) {
    Error error;
    handle_ = create(options, error);
    if (error) throw error;
  }
  /** Check `error`: a loader that wasn't made refuses everything. */
  Loader(const LoaderOptions& options, Error& error) : handle_(create(options, error)) {}
  Loader(Loader&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)),
        error_(std::move(other.error_)),
        next_epoch_(other.next_epoch_) {}
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

  void stop() {
    detail::checked(error_, [&](feedlane_error* e) { return feedlane_loader_stop(handle_, e); });
    if (error_) throw error_;
  }
  /** Any thread, signal handlers too. */
  void interrupt() noexcept { (void)feedlane_loader_interrupt(handle_); }
  [[nodiscard]] std::int64_t length() const {
    std::int64_t batches = 0;
    (void)feedlane_loader_length(handle_, &batches);
    return batches;
  }
  [[nodiscard]] feedlane_stats stats() const {
    feedlane_stats s;
    feedlane_init(&s, sizeof s);
    (void)feedlane_loader_stats(handle_, &s);
    return s;
  }
  [[nodiscard]] std::vector<feedlane_worker_stats> worker_stats() const {
    std::vector<feedlane_worker_stats> all;
    feedlane_worker_stats s;
    feedlane_init(&s, sizeof s);
    for (std::int32_t w = 0; feedlane_loader_worker_stats(handle_, w, &s) == FEEDLANE_OK; w++) all.push_back(s);
    return all;
  }
  [[nodiscard]] feedlane_loader* c() const { return handle_; }

  /** `for (auto& batch : loader)` runs the next epoch: 0, then 1, or the one after start_epoch's. Each batch is released when
   *  the loop comes to the next, unless it was moved away. Errors throw; a signal or interrupt() throws too, as code 0 text
   *  "INTERRUPTED": a loop can't go on without a batch. */
  class iterator {
   public:
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
    friend bool operator==(const iterator& i, std::default_sentinel_t) { return !i.current_; }

   private:
    friend class Loader;
    explicit iterator(Loader& loader) : loader_(&loader) { ++*this; }
    Loader* loader_;
    mutable std::optional<Batch> current_;
  };
  iterator begin() {
    start_epoch(next_epoch_);
    return iterator(*this);
  }
  [[nodiscard]] static std::default_sentinel_t end() { return {}; }

  /** A range-for loop was ended by INTERRUPTED or SLOTS_HELD. */
  class Interrupted : public std::exception {
   public:
    explicit Interrupted(std::int32_t outcome) : outcome_(outcome) {}
    [[nodiscard]] std::int32_t outcome() const noexcept { return outcome_; }
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
