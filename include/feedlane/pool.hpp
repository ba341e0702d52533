// SPDX-License-Identifier: Apache-2.0
/** @file pool.hpp Memory registered with a device, and buffers of it. */
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

/** An aggregate for designated initialisers; what is left out is the default of feedlane_pool_config. */
struct PoolOptions {
  std::string backend{};                    /**< "none", "mlock" or "cuda"; empty: "none" */
  const feedlane_backend* custom = nullptr; /**< instead of `backend`; copied */
  int device = 0;                           /**< "cuda": ordinal */
  std::uint32_t buffers = 0;                /**< made and registered at once */
  std::uint64_t buffer_bytes = 0;           /**< of each */
  std::uint64_t budget_bytes = 0;           /**< registered at most; 0: any number */
};

/** Any thread. Buffers and loaders that have it must end before it does. */
class Pool {
 public:
  /** A buffer in the caller's hands, given back on destruction. Move-only. */
  class Buffer {
   public:
    /** `other` holds nothing after. */
    Buffer(Buffer&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), buffer_(std::exchange(other.buffer_, {})) {}
    /** Exchanges the two. */
    Buffer& operator=(Buffer&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(buffer_, other.buffer_);
      return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() {
      if (pool_ != nullptr) (void)feedlane_pool_release(pool_, buffer_.token);
    }
    /** Page-aligned and registered. */
    [[nodiscard]] std::span<std::byte> bytes() const {
      return {static_cast<std::byte*>(buffer_.data), static_cast<std::size_t>(buffer_.bytes)};
    }
    /** Enqueues a copy of the first `bytes` to device memory. Throws. */
    void to_device(void* device_memory, std::uint64_t bytes, void* stream) const {
      detail::or_raise([&](Error& error) { to_device(device_memory, bytes, stream, error); });
    }
    /** The same; what went wrong is in `error`. */
    void to_device(void* device_memory, std::uint64_t bytes, void* stream, Error& error) const noexcept {
      detail::checked(error, [&](feedlane_error* e) {
        return feedlane_pool_to_device(pool_, buffer_.token, device_memory, bytes, stream, e);
      });
    }
    /** Gives it back when the stream has come so far: this holds nothing after. Throws, and still has it then. */
    void release_on(void* stream) {
      detail::or_raise([&](Error& error) { release_on(stream, error); });
    }
    /** The same; what went wrong is in `error`. */
    void release_on(void* stream, Error& error) noexcept {
      detail::checked(error,
                      [&](feedlane_error* e) { return feedlane_pool_release_on(pool_, buffer_.token, stream, e); });
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

  /** Makes and registers the buffers. Throws. */
  explicit Pool(const PoolOptions& o) {
    detail::or_raise([&](Error& error) { create(o, error); });
  }
  /** Check `error`: a pool that wasn't made refuses everything. */
  Pool(const PoolOptions& o, Error& error) noexcept { create(o, error); }
  /** `other` must only be destroyed after. */
  Pool(Pool&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  /** Exchanges the two. */
  Pool& operator=(Pool&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { (void)feedlane_pool_destroy(&handle_); }

  /** Waits for a buffer; nothing after the timeout or when a signal came. Throws. */
  [[nodiscard]] std::optional<Buffer> acquire(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) {
    return detail::or_raise([&](Error& error) { return acquire(timeout, error); });
  }
  /** The same; what went wrong is in `error`. */
  [[nodiscard]] std::optional<Buffer> acquire(std::chrono::nanoseconds timeout, Error& error) noexcept {
    feedlane_buffer b{};
    b.size = sizeof b;
    const std::int32_t status = detail::checked(
        error, [&](feedlane_error* e) { return feedlane_pool_acquire(handle_, timeout.count(), &b, e); });
    if (status != FEEDLANE_OK) return std::nullopt;
    return Buffer(handle_, b);
  }
  /** Registers the pages on which the user's memory lies. Throws. */
  void add(std::span<std::byte> memory) {
    detail::or_raise([&](Error& error) { add(memory, error); });
  }
  /** The same; what went wrong is in `error`. */
  void add(std::span<std::byte> memory, Error& error) noexcept {
    detail::checked(
        error, [&](feedlane_error* e) { return feedlane_pool_register(handle_, memory.data(), memory.size(), e); });
  }
  /** Unregisters what was added at this address. Throws. */
  void remove(std::byte* address) {
    detail::or_raise([&](Error& error) { remove(address, error); });
  }
  /** The same; what went wrong is in `error`. */
  void remove(std::byte* address, Error& error) noexcept {
    detail::checked(error, [&](feedlane_error* e) { return feedlane_pool_unregister(handle_, address, e); });
  }
  /** Its counters. */
  [[nodiscard]] feedlane_pool_stats stats() const {
    feedlane_pool_stats s{};
    s.size = sizeof s;
    (void)feedlane_pool_get_stats(handle_, &s);
    return s;
  }
  /** The handle, for the C interface; still owned by this. */
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
