// SPDX-License-Identifier: Apache-2.0
/** @file loader.hpp The trainer's side: the loader. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "batch.hpp"
#include "loader_options.hpp"
#include "monitor.hpp"
#include "state.hpp"

namespace feedlane {
inline namespace v1 {

/** A loader. Thread safety: one thread at a time. Any thread may call interrupt, run_worker, monitor and event. */
class Loader {
 public:
  /** Reserves all memory; workers start with the first epoch. Throws. */
  explicit Loader(const LoaderOptions& options) {
    Error error;
    create(options, error);
    if (error) detail::raise(error);
  }
  /** Non-throwing form. Check `error`: after a failure every call of the loader fails. */
  Loader(const LoaderOptions& options, Error& error) { create(options, error); }
  /** Takes ownership of a handle of the C interface. The first range-for loop runs epoch 0. On a consumer it runs the
   *  smallest epoch that start_epoch accepts, because the feeder may be in a later epoch than 0. */
  explicit Loader(feedlane_loader* handle) noexcept : handle_(handle) {
    Error error;
    const std::optional<Monitor> monitor = Monitor::of(handle, error);
    if (monitor) next_epoch_ = std::max<std::int64_t>(monitor->info().next_epoch, 0);
  }
  /** Every later call of `other` fails. */
  Loader(Loader&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)),
        room_(std::move(other.room_)),
        next_epoch_(other.next_epoch_),
        outcome_(other.outcome_) {}
  /** Swaps the two objects. */
  Loader& operator=(Loader&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(room_, other.room_);
    std::swap(next_epoch_, other.next_epoch_);
    std::swap(outcome_, other.outcome_);
    return *this;
  }
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  /** Ends the workers. Batches that are still held stay valid. */
  ~Loader() { (void)feedlane_loader_destroy(&handle_); }

  /** Starts an epoch and abandons an unfinished one. Throws. */
  void start_epoch(std::int64_t epoch) {
    detail::or_raise([&](Error& error) { start_epoch(epoch, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  void start_epoch(std::int64_t epoch, Error& error) noexcept {
    detail::checked(error, room_, [&](feedlane_error* e) { return feedlane_loader_begin(handle_, epoch, e); });
    if (!error) next_epoch_ = epoch + 1;
  }

  /** The epoch that the next range-for loop runs. Initially 0, or the epoch that LoaderOptions::state resumes; after
   *  start_epoch, the following one. */
  [[nodiscard]] std::int64_t next_epoch() const noexcept { return next_epoch_; }

  /** The position after the newest batch, in a few hundred bytes. Pass it as LoaderOptions::state, in this or another
   *  process, to resume there. Throws. */
  [[nodiscard]] std::vector<std::byte> state() {
    return detail::or_raise([&](Error& error) { return state_at(0, error); });
  }
  /** Non-throwing form: on failure empty, with the error in `error`. */
  [[nodiscard]] std::vector<std::byte> state(Error& error) { return state_at(0, error); }
  /** The position after `batch`, for the checkpoint of a model trained up to it. `batch` must still be held. Throws. */
  [[nodiscard]] std::vector<std::byte> state(const Batch& batch) {
    return detail::or_raise([&](Error& error) { return state(batch, error); });
  }
  /** Non-throwing form: on failure empty, with the error in `error`. */
  [[nodiscard]] std::vector<std::byte> state(const Batch& batch, Error& error) {
    if (batch.held()) return state_at(batch.token(), error);
    error.refuse("batch", 0, 1, "the batch was released or moved away", FEEDLANE_E_STATE);
    return {};
  }

  /** The next batch. Returns nullopt at the end of the epoch, after a timeout, a signal or interrupt(), and if the
   *  trainer holds every slot; outcome() says which. Throws. After an error of one batch (E_SAMPLE, E_QUARANTINED) the
   *  next call yields the following batch. */
  std::optional<Batch> next(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) {
    return detail::or_raise([&](Error& error) { return next(timeout, error); });
  }
  /** Non-throwing form: the error is in `error`. SLOTS_HELD and INTERRUPTED also store text and numbers there. For
   *  INTERRUPTED, os_errno() is EINTR after a signal and 0 after interrupt(). */
  std::optional<Batch> next(std::chrono::nanoseconds timeout, Error& error) noexcept {
    feedlane_batch batch{};
    batch.size = sizeof batch;
    outcome_ = detail::checked(
        error, room_, [&](feedlane_error* e) { return feedlane_loader_next(handle_, timeout.count(), &batch, e); });
    if (outcome_ != FEEDLANE_OK) return std::nullopt;
    return Batch(handle_, batch);
  }
  /** The status of the last `next`: FEEDLANE_OK, _END, _TIMEOUT, _INTERRUPTED, _SLOTS_HELD or the code of the error. */
  [[nodiscard]] std::int32_t outcome() const noexcept { return outcome_; }

  /** Prepares to sleep in an event loop. Returns the descriptor to poll for reading, which the loader owns and which
   *  never changes; nullopt: next or poll must be called now instead. Throws. */
  [[nodiscard]] std::optional<int> arm() {
    return detail::or_raise([&](Error& error) { return arm(error); });
  }
  /** Non-throwing form: the error is in `error`. */
  [[nodiscard]] std::optional<int> arm(Error& error) noexcept {
    std::int32_t fd = -1;
    const std::int32_t status =
        detail::checked(error, [&](feedlane_error*) { return feedlane_loader_arm(handle_, &fd); });
    if (status != FEEDLANE_OK) return std::nullopt;
    return fd;
  }
  /** Does the work of next without yielding a batch and without waiting: sends tasks, replaces workers that died.
   *  Returns true if next has a batch or another outcome to return. Throws. */
  bool poll() {
    return detail::or_raise([&](Error& error) { return poll(error); });
  }
  /** Non-throwing form: the error is in `error`. */
  bool poll(Error& error) noexcept {
    return detail::checked(error, room_, [&](feedlane_error* e) { return feedlane_loader_poll(handle_, e); }) ==
           FEEDLANE_AGAIN;
  }

  /** Ends the epoch and all workers, and waits until the workers have ended. Throws. */
  void stop() {
    detail::or_raise([&](Error& error) { stop(error); });
  }
  /** Non-throwing form: the error is in `error`. */
  void stop(Error& error) noexcept {
    detail::checked(error, [&](feedlane_error* e) { return feedlane_loader_stop(handle_, e); });
  }
  /** Start::external: returns a connected socket for one worker process; nullopt: no worker is missing. The caller owns
   *  the socket and passes it to the process. `id` is the worker wanted, or -1 for any; it is set to the actual id.
   *  Throws. */
  [[nodiscard]] std::optional<int> open_worker(std::int32_t& id) {
    return detail::or_raise([&](Error& error) { return open_worker(id, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  [[nodiscard]] std::optional<int> open_worker(std::int32_t& id, Error& error) noexcept {
    std::int32_t fd = -1;
    const std::int32_t status =
        detail::checked(error, [&](feedlane_error* e) { return feedlane_loader_open_worker(handle_, &id, &fd, e); });
    if (status != FEEDLANE_OK) return std::nullopt;
    return fd;
  }
  /** Start::thread: runs LoaderOptions::dataset as a worker in the calling thread until the trainer ends it. Returns
   *  false if no worker is missing. Thread safety: any thread, but the call must begin before the loader's destructor.
   *  Throws. */
  bool run_worker() {
    return detail::or_raise([&](Error& error) { return run_worker(error); });
  }
  /** Non-throwing form: the error is in `error`. */
  bool run_worker(Error& error) noexcept {
    detail::Room room;  // not room_, which the trainer's thread uses
    return detail::checked(error, room, [&](feedlane_error* e) {
             return feedlane_worker_run(-1, handle_, nullptr, e);
           }) == FEEDLANE_OK;
  }
  /** LoaderOptions::staged: copies batches in the calling thread until the loader is destroyed. The call must begin
   *  before the loader's destructor. Throws. */
  void run_stager() {
    detail::or_raise([&](Error& error) { run_stager(error); });
  }
  /** Non-throwing form: the error is in `error`. */
  void run_stager(Error& error) noexcept {
    detail::checked(error, [&](feedlane_error* e) { return feedlane_loader_run_stager(handle_, e); });
  }
  /** Ends a range-for loop, and the current or next wait in `next`. Thread safety: any thread, and signal handlers. */
  void interrupt() noexcept { (void)feedlane_loader_interrupt(handle_); }
  /** Number of batches in the epoch; -1: unknown. Thread safety: any thread. */
  [[nodiscard]] std::int64_t length() const noexcept {
    Error error;
    const std::optional<Monitor> monitor = Monitor::of(handle_, error);
    return monitor ? monitor->info().batches : 0;
  }
  /** Reads this loader's counters, timings, trace and bottleneck. It keeps the loader's memory. Throws. Thread safety:
   *  any thread. */
  [[nodiscard]] Monitor monitor() const { return Monitor::of(handle_); }
  /** The oldest unread event; nullopt: there is none. Thread safety: any thread. */
  std::optional<feedlane_event> event() noexcept {
    feedlane_event e{};
    e.size = sizeof e;
    if (feedlane_loader_event(handle_, &e) != FEEDLANE_OK) return std::nullopt;
    return e;
  }
  /** The handle for the C interface; this object still owns it. */
  [[nodiscard]] feedlane_loader* c() const noexcept { return handle_; }

  /** Thrown by a range-for loop that can't continue. code() is FEEDLANE_INTERRUPTED after interrupt(), or, with its
   *  numbers, FEEDLANE_SLOTS_HELD if the trainer holds every slot. The loader stays usable: next() continues the
   *  epoch. */
  class Interrupted : public Error {
   public:
    /** Made from the outcome of `next`. */
    explicit Interrupted(const Error& said) noexcept : Error(said) {}
    /** Returns code(). */
    [[nodiscard]] std::int32_t outcome() const noexcept { return code(); }
  };

  /** `for (auto& batch : loader)` runs the epoch next_epoch(). Each batch is released before the next one is taken,
   *  unless it was moved away. All errors throw, including errors of a single batch. A signal that the program handles
   *  doesn't end the loop. interrupt(), also in a signal handler, and SLOTS_HELD end the loop by throwing
   *  Interrupted. */
  class iterator {
   public:
    /** @{ Required of an input iterator. */
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Batch& operator*() const { return *current_; }
    Batch* operator->() const { return &*current_; }
    iterator& operator++() {
      current_.reset();
      Error error;
      do current_ = loader_->next(std::chrono::nanoseconds::max(), error);
      while (error.code() == FEEDLANE_INTERRUPTED && error.os_errno() != 0);  // a signal
      if (error) detail::raise(error);
      if (!current_ && loader_->outcome() != FEEDLANE_END) detail::raise(Interrupted(error));
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
  [[nodiscard]] static std::default_sentinel_t end() noexcept { return {}; }

 private:
  std::vector<std::byte> state_at(std::uint64_t token, Error& error) {
    return detail::saved(error, room_, [&](void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error* e) {
      return feedlane_loader_state(handle_, token, buffer, cap, bytes, e);
    });
  }
  void create(const LoaderOptions& options, Error& error) {
    handle_ = detail::create_loader(options, error);
    if (error || options.state.empty()) return;
    const StateInfo info = read_state(options.state, error);  // the loader has accepted the state
    next_epoch_ = info.epoch + (info.ended ? 1 : 0);
    if (error) (void)feedlane_loader_destroy(&handle_);
  }

  feedlane_loader* handle_ = nullptr;
  detail::Room room_;
  std::int64_t next_epoch_ = 0;
  std::int32_t outcome_ = FEEDLANE_OK;
};

}  // namespace v1
}  // namespace feedlane

#endif
