// SPDX-License-Identifier: Apache-2.0
/** @file loader.hpp The trainer's side: the loader. */
#pragma once

#include <chrono>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "batch.hpp"
#include "loader_options.hpp"
#include "state.hpp"

namespace feedlane {
inline namespace v1 {

/** One thread at a time, but interrupt, run_local, statistics and events. */
class Loader {
 public:
  /** Reserves all memory; workers start with the first epoch. Throws. */
  explicit Loader(const LoaderOptions& options) {
    Error error;
    handle_ = detail::create_loader(options, error);
    if (error) throw error;
    go_on(options.state);
  }
  /** Check `error`: a loader that wasn't made refuses everything. */
  Loader(const LoaderOptions& options, Error& error) : handle_(detail::create_loader(options, error)) {
    if (!error) go_on(options.state);
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
  std::vector<std::byte> state_at(std::uint64_t token) {
    return detail::saved([&](void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error* e) {
      return feedlane_loader_state(handle_, token, buffer, cap, bytes, e);
    });
  }
  void go_on(std::span<const std::byte> state) {
    if (state.empty()) return;
    try {
      const StateInfo info = read_state(state);  // the loader has accepted it
      next_epoch_ = info.epoch + (info.ended ? 1 : 0);
    } catch (...) {  // out of memory, in a constructor: nobody else would
      (void)feedlane_loader_destroy(&handle_);
      throw;
    }
  }

  feedlane_loader* handle_ = nullptr;
  Error error_;
  std::int64_t next_epoch_ = 0;
  std::int32_t outcome_ = FEEDLANE_OK;
};

}  // namespace v1
}  // namespace feedlane
