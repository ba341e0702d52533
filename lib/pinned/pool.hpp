// SPDX-License-Identifier: Apache-2.0
// The pool: memory registered with a device, and a fixed set of buffers in it. Private to this process. Thread safety:
// any thread.
//
// A buffer is free, held or pending. The caller holds a buffer under a token of index and generation. A pending buffer
// was released on a stream that has not yet reached the point of the release. One mutex guards all state. It is never
// locked during a call of the backend, because a driver's callbacks lock it too.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/error.hpp"
#include "feedlane/pool.h"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "pinned/backend.hpp"

namespace feedlane::pinned {

class Pool {
 public:
  static Status create(const feedlane_pool_config* config, std::unique_ptr<Pool>& out, Error& error);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  Status acquire(os::Deadline deadline, feedlane_buffer& out, Error& error);
  // With FEEDLANE_NO_STREAM, the buffer is free at once.
  Status release(std::uint64_t token, void* stream, Error& error);
  Status copy(void* device_memory, const void* host, std::uint64_t bytes, void* stream, Error& error);
  // Only the owner that registered memory may unregister it.
  enum class Owner { user, loader, pool };
  Status register_memory(void* address, std::uint64_t bytes, Owner owner, Error& error,
                         Access access = Access::read_write);
  Status unregister_memory(void* address, Owner owner, Error& error);
  [[nodiscard]] feedlane_pool_stats stats() const;
  [[nodiscard]] std::uint64_t buffer_bytes() const { return buffer_bytes_; }
  [[nodiscard]] std::uint32_t buffers() const { return static_cast<std::uint32_t>(buffers_.size()); }
  [[nodiscard]] Backend& backend() { return *backend_; }
  // Whether one registration, of whichever owner, covers the complete range, in one part.
  [[nodiscard]] bool covers(const void* address, std::uint64_t bytes) const;

  // A loader uses the pool from the loader's creation to its destruction.
  void add_user() { users_.fetch_add(1, std::memory_order_relaxed); }
  void remove_user() { users_.fetch_sub(1, std::memory_order_release); }  // pairs with the acquire in check_idle
  // Leaves the deletion of `object` to the next clean_up. For a stream's callback, which must not call the driver.
  // Never fails and allocates nothing.
  class Deferred;
  void defer(Deferred& object);
  void clean_up();
  // Around a stream's callback that may let go of a loader's last count: check_idle waits for its end, so it must not
  // block, nor wait for anything that a caller of check_idle may hold. The pool must exist at the beginning, and does
  // until the end.
  class Callback {
   public:
    // Relaxed: who sees what the callback has freed sees this too.
    explicit Callback(Pool& pool) : pool_(pool) { pool_.callbacks_.fetch_add(1, std::memory_order_relaxed); }
    Callback(const Callback&) = delete;
    Callback& operator=(const Callback&) = delete;
    ~Callback() { pool_.callbacks_.fetch_sub(1, std::memory_order_release); }  // pairs with the acquire in check_idle

   private:
    Pool& pool_;
  };
  // E_STATE while buffers are in use or a loader uses the pool.
  Status check_idle(Error& error);

 private:
  Pool() = default;

  enum class State { free, held, pending };
  struct Buffer {
    Pool* pool = nullptr;
    State state = State::free;
    std::uint32_t generation = 1;
    Passed passed{};
  };
  // A registered range of complete pages. Not settled: a thread is registering or unregistering it, so no other thread
  // can register any part of it.
  struct Stretch {
    std::uint64_t bytes;
    std::uint64_t part;  // the backend got parts of so many bytes, and the rest
    Owner owner;
    bool is_settled;
  };

  Status make_buffers(const feedlane_pool_config& config, Error& error);
  [[nodiscard]] Buffer* find(std::uint64_t token);  // under the mutex; a held buffer, or nullptr
  void put_back(std::uint32_t index);
  void wake_sleeper();  // under the mutex
  Status register_parts(std::uintptr_t first, const Stretch& stretch, Access access, Error& error);
  void give_up_parts(std::uintptr_t first, const Stretch& stretch, std::uint64_t bytes);
  // Unregisters parts from the last one on; `left` are the bytes that are still registered, after an error.
  Status unregister_parts(std::uintptr_t first, const Stretch& stretch, std::uint64_t& left, Error& error);
  // under the mutex
  [[nodiscard]] std::map<std::uintptr_t, Stretch>::const_iterator find_before(std::uintptr_t at) const;
  [[nodiscard]] std::uint64_t left_of_part(const void* address) const;
  void set_bytes(std::uintptr_t first, std::uint64_t bytes);  // under the mutex; 0: it is no longer registered
  static void on_passed(void* cookie, std::int32_t status);

  std::unique_ptr<Backend> backend_;
  std::uint64_t budget_ = UINT64_MAX;
  std::byte* memory_ = nullptr;
  std::uint64_t buffer_bytes_ = 0;
  os::Fd returned_;  // eventfd for threads that sleep in acquire
  std::atomic<std::uint32_t> users_{0};
  std::atomic<std::uint32_t> callbacks_{0};

  mutable std::mutex mutex_;
  std::vector<Buffer> buffers_;
  std::vector<std::uint32_t> free_;
  std::map<std::uintptr_t, Stretch> registered_;  // by page-aligned address
  std::uint32_t sleepers_ = 0;
  bool failed_ = false;  // a stream has failed, and no call has reported it yet
  feedlane_pool_stats counters_{};
  Deferred* deferred_ = nullptr;
};

// An element of the list of objects to delete later.
class Pool::Deferred {
 public:
  virtual ~Deferred() = default;
  Deferred* next = nullptr;
};

}  // namespace feedlane::pinned
