// SPDX-License-Identifier: Apache-2.0
/** @file share.hpp Sharing one loader among trainers: consumers' places, the feeder's loop, joining. See share.h. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"
#include "loader.hpp"

namespace feedlane {
inline namespace v1 {

/** What the feeder does when it has no free slot because a consumer has not released its batches. */
enum class Lag : std::int32_t {
  block = FEEDLANE_LAG_BLOCK,     /**< waits for the consumer */
  evict = FEEDLANE_LAG_EVICT,     /**< waits; evicts the consumer after evict_after without progress */
  observe = FEEDLANE_LAG_OBSERVE, /**< takes back batches that the consumer has not taken, so it misses them */
};

/** Options of a consumer's place. */
struct ConsumerOptions {
  std::int32_t id = -1;                    /**< the place, with Share::deal the rank; -1: any without a consumer */
  Lag lag = Lag::block;                    /**< with Share::deal not observe */
  std::chrono::nanoseconds evict_after{0}; /**< for Lag::evict; 0: 60 s */
  /** Of the consumer, so only for join: registers the slots for reading; must outlive the loader and its batches; null:
   *  none. */
  const Pool* pinned = nullptr;
};

/** An opened place. Owns the place's descriptor until release(). */
class Place {
 public:
  /** Takes ownership of `fd`. */
  Place(std::int32_t id, int fd) noexcept : id_(id), fd_(fd) {}
  /** Takes the descriptor from `other`. */
  Place(Place&& other) noexcept : id_(other.id_), fd_(std::exchange(other.fd_, -1)) {}
  /** Swaps the two objects. */
  Place& operator=(Place&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  /** Closes the descriptor, so nobody else can join through it. */
  ~Place() {
    if (fd_ >= 0) (void)::close(fd_);
  }
  /** The number of the place. */
  [[nodiscard]] std::int32_t id() const noexcept { return id_; }
  /** The descriptor; this object still owns it. */
  [[nodiscard]] int fd() const noexcept { return fd_; }
  /** Returns the descriptor; the caller now owns it. */
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

 private:
  std::int32_t id_;
  int fd_;
};

namespace detail {

/** Returns the struct of the C interface. */
inline feedlane_consumer_config to_c(const ConsumerOptions& options) noexcept {
  auto c = sized<feedlane_consumer_config>();
  c.id = options.id;
  c.lag = static_cast<std::int32_t>(options.lag);
  c.evict_after_ns = options.evict_after.count();
  c.pinned = options.pinned == nullptr ? nullptr : options.pinned->c();
  return c;
}

inline Loader join(int fd, const char* path, const ConsumerOptions& options, std::chrono::nanoseconds timeout) {
  const feedlane_consumer_config c = to_c(options);
  feedlane_loader* handle = nullptr;
  or_raise([&](Error& error) {
    return checked(error,
                   [&](feedlane_error* e) { return feedlane_loader_join(fd, path, &c, timeout.count(), &handle, e); });
  });
  return Loader(handle);
}

}  // namespace detail

/** Opens a place for a consumer of a shared loader; on failure nullopt, with the error in `error`. Thread safety: one
 *  thread at a time. */
inline std::optional<Place> open_consumer(Loader& feeder, const ConsumerOptions& options, Error& error) noexcept {
  const feedlane_consumer_config c = detail::to_c(options);
  std::int32_t id = -1, fd = -1;
  detail::checked(error, [&](feedlane_error* e) { return feedlane_loader_open_consumer(feeder.c(), &c, &id, &fd, e); });
  if (error) return std::nullopt;
  return Place(id, fd);
}
/** Throwing form of the above. */
inline Place open_consumer(Loader& feeder, const ConsumerOptions& options = {}) {
  return *detail::or_raise([&](Error& error) { return open_consumer(feeder, options, error); });
}

/**
 * The feeder's loop. Returns:
 *  - FEEDLANE_END: the epoch is over. Before the first epoch: LoaderOptions::consumers consumers have joined. After an
 *    epoch: all consumers have left or were evicted, and hold no batch.
 *  - FEEDLANE_TIMEOUT, FEEDLANE_INTERRUPTED: call again.
 *  - Any other status: an error, described in `error`.
 */
inline std::int32_t serve(Loader& feeder, std::chrono::nanoseconds timeout, Error& error) noexcept {
  return detail::checked(error,
                         [&](feedlane_error* e) { return feedlane_loader_serve(feeder.c(), timeout.count(), e); });
}
/** Throwing form, without a timeout. A signal that the program handles doesn't end the loop. */
inline void serve(Loader& feeder) {
  Error error;
  std::int32_t status = FEEDLANE_TIMEOUT;
  do {
    error = Error();
    status = serve(feeder, std::chrono::nanoseconds::max(), error);
  } while (status == FEEDLANE_INTERRUPTED && error.os_errno() != 0);
  if (error) detail::raise(error);
}

/** The feeder's consumers, including consumers that have ended but still hold batches. */
[[nodiscard]] inline std::vector<feedlane_consumer_stats> consumer_stats(Loader& feeder) {
  std::vector<feedlane_consumer_stats> all;
  auto s = detail::sized<feedlane_consumer_stats>();
  for (std::int32_t n = 0; feedlane_loader_get_consumer(feeder.c(), n, &s) == FEEDLANE_OK; n++) all.push_back(s);
  return all;
}

/** Joins a feeder through a place's descriptor. Closes `fd`, also on failure. The loader yields the batches that the
 *  feeder delivers; the first range-for loop runs the feeder's current epoch. Tensors are read-only. Throws. */
[[nodiscard]] inline Loader join(int fd, std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
  return detail::join(fd, nullptr, {}, timeout);
}
/** As above, with a pool: see ConsumerOptions::pinned. */
[[nodiscard]] inline Loader join(int fd, const Pool& pinned,
                                 std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
  return detail::join(fd, nullptr, {.pinned = &pinned}, timeout);
}
/** As above, through the feeder's LoaderOptions::share_path. */
[[nodiscard]] inline Loader join(const std::string& path, const ConsumerOptions& options = {},
                                 std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
  return detail::join(-1, path.c_str(), options, timeout);
}

}  // namespace v1
}  // namespace feedlane

#endif
