// SPDX-License-Identifier: Apache-2.0
/** @file pool.hpp Memory registered with a device, and buffers in it. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "error.hpp"

namespace feedlane {
inline namespace v1 {

/** An aggregate for designated initialisers. The defaults are those of feedlane_pool_config. */
struct PoolOptions {
  std::string backend{};                    /**< as in feedlane_pool_config; empty: "none" */
  const feedlane_backend* custom = nullptr; /**< used instead of `backend`; copied */
  int device = 0;                           /**< ordinal of the device */
  std::uint32_t buffers = 0;                /**< number of buffers, which the constructor allocates and registers */
  std::uint64_t buffer_bytes = 0;           /**< size of each buffer */
  std::uint64_t budget_bytes = 0;           /**< most bytes that may be registered; 0: no limit */
};

/** A pool. Thread safety: any thread. Its buffers, the loaders that use it and their monitors must be destroyed before
 *  it. */
class Pool {
 public:
  /** A buffer that the caller holds; the destructor returns it to the pool. Move-only. */
  class Buffer {
   public:
    /** `other` becomes empty. */
    Buffer(Buffer&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), buffer_(std::exchange(other.buffer_, {})) {}
    /** Swaps the two objects. */
    Buffer& operator=(Buffer&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(buffer_, other.buffer_);
      return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() {
      if (pool_ != nullptr) (void)feedlane_pool_release(pool_, buffer_.token, FEEDLANE_NO_STREAM, nullptr);
    }
    /** The memory, page-aligned and registered. */
    [[nodiscard]] std::span<std::byte> bytes() const {
      return {static_cast<std::byte*>(buffer_.data), static_cast<std::size_t>(buffer_.bytes)};
    }
    /** Returns the buffer to the pool once the stream has completed all work enqueued so far. This object becomes empty
     *  at once. On failure it throws, and this object still holds the buffer. */
    void release_on(void* stream) {
      detail::or_raise([&](Error& error) { release_on(stream, error); });
    }
    /** Non-throwing form: the error is in `error`. */
    void release_on(void* stream, Error& error) noexcept {
      detail::checked(error, [&](feedlane_error* e) { return feedlane_pool_release(pool_, buffer_.token, stream, e); });
      if (!error) empty();
    }

   private:
    friend class Pool;
    Buffer(feedlane_pool* pool, const feedlane_buffer& buffer) noexcept : pool_(pool), buffer_(buffer) {}
    void empty() noexcept {
      pool_ = nullptr;
      buffer_ = {};
    }
    feedlane_pool* pool_;
    feedlane_buffer buffer_;
  };

  /** Allocates and registers the buffers. Throws. */
  explicit Pool(const PoolOptions& o) {
    detail::or_raise([&](Error& error) { create(o, error); });
  }
  /** Non-throwing form. Check `error`: after a failure every call of the pool fails. */
  Pool(const PoolOptions& o, Error& error) noexcept { create(o, error); }
  /** Afterwards `other` can only be destroyed. */
  Pool(Pool&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  /** Swaps the two objects. */
  Pool& operator=(Pool&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { (void)feedlane_pool_destroy(&handle_); }

  /** Waits for a buffer; nullopt: the timeout has passed, or a signal came. Throws. */
  [[nodiscard]] std::optional<Buffer> acquire(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) {
    return detail::or_raise([&](Error& error) { return acquire(timeout, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  [[nodiscard]] std::optional<Buffer> acquire(std::chrono::nanoseconds timeout, Error& error) noexcept {
    feedlane_buffer b{};
    b.size = sizeof b;
    const std::int32_t status = detail::checked(
        error, [&](feedlane_error* e) { return feedlane_pool_acquire(handle_, timeout.count(), &b, e); });
    if (status != FEEDLANE_OK) return std::nullopt;
    return Buffer(handle_, b);
  }
  /** Registers the pages that contain `memory`. Throws. */
  void add(std::span<std::byte> memory) {
    detail::or_raise([&](Error& error) { add(memory, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  void add(std::span<std::byte> memory, Error& error) noexcept {
    detail::checked(
        error, [&](feedlane_error* e) { return feedlane_pool_register(handle_, memory.data(), memory.size(), e); });
  }
  /** Unregisters the memory that was added at `address`. Throws. */
  void remove(std::byte* address) {
    detail::or_raise([&](Error& error) { remove(address, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  void remove(std::byte* address, Error& error) noexcept {
    detail::checked(error, [&](feedlane_error* e) { return feedlane_pool_unregister(handle_, address, e); });
  }
  /** Enqueues a copy of a buffer, a batch's tensor or other memory to device memory, see feedlane_pool_copy. `host`
   *  must stay valid until the copy is complete. Throws. */
  void copy(void* device_memory, std::span<const std::byte> host, void* stream) {
    detail::or_raise([&](Error& error) { copy(device_memory, host, stream, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  void copy(void* device_memory, std::span<const std::byte> host, void* stream, Error& error) noexcept {
    detail::checked(error, [&](feedlane_error* e) {
      return feedlane_pool_copy(handle_, device_memory, host.data(), host.size(), stream, e);
    });
  }
  /** The pool's counters. */
  [[nodiscard]] feedlane_pool_stats stats() const {
    feedlane_pool_stats s{};
    s.size = sizeof s;
    (void)feedlane_pool_get_stats(handle_, &s);
    return s;
  }
  /** The handle for the C interface; this object still owns it. */
  [[nodiscard]] feedlane_pool* c() const { return handle_; }

 private:
  void create(const PoolOptions& o, Error& error) noexcept {
    feedlane_pool_config c{};
    c.size = sizeof c;
    c.backend = o.backend.empty() ? nullptr : o.backend.c_str();
    c.custom = o.custom;
    c.device = o.device;
    c.buffers = o.buffers;
    c.buffer_bytes = o.buffer_bytes;
    c.budget_bytes = o.budget_bytes;
    detail::checked(error, [&](feedlane_error* e) { return feedlane_pool_create(&c, &handle_, e); });
  }
  feedlane_pool* handle_ = nullptr;
};

}  // namespace v1
}  // namespace feedlane

#endif
