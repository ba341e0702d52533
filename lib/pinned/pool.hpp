// SPDX-License-Identifier: Apache-2.0
// Memory registered with a device, and a fixed set of buffers of it. Private to this process. Any thread.
//
// A buffer is free, in a caller's hands under a token of index and generation, or pending: released on a stream that hasn't
// come so far. One mutex guards all of it; the backend is never called under it, for a driver's callbacks take it too.
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
  Status release(std::uint64_t token);
  Status release_on(std::uint64_t token, void* stream, Error& error);
  Status to_device(std::uint64_t token, void* device_memory, std::uint64_t bytes, void* stream, Error& error);
  // Who may unregister it again.
  enum class Owner { user, loader, pool };
  Status register_memory(void* address, std::uint64_t bytes, Owner owner, Error& error);
  Status unregister_memory(void* address, Owner owner, Error& error);
  [[nodiscard]] feedlane_pool_stats stats() const;
  [[nodiscard]] std::uint64_t buffer_bytes() const { return buffer_bytes_; }
  [[nodiscard]] std::uint32_t buffers() const { return static_cast<std::uint32_t>(buffers_.size()); }
  [[nodiscard]] Backend& backend() { return *backend_; }
  // Whether all of it is registered, by whomsoever.
  [[nodiscard]] bool covers(const void* address, std::uint64_t bytes) const;

  // A loader has the pool from its creation to its end.
  void add_user() { users_.fetch_add(1, std::memory_order_relaxed); }
  void remove_user() { users_.fetch_sub(1, std::memory_order_release); }  // pairs with the acquire in check_idle
  // What can't be done where a stream's callback runs, for nothing of the driver may be called there: done by the next call
  // of `clean_up`. Never fails: memory was set aside.
  class Burial;
  void bury(Burial& burial);
  void clean_up();
  // E_STATE while buffers are in use or a loader is there.
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
  // A stretch of whole pages that is registered, or that some thread is registering or unregistering: then it is that
  // thread's alone, and its place is taken all the same.
  struct Stretch {
    std::uint64_t bytes;
    Owner owner;
    bool is_settled;
  };

  Status make_buffers(const feedlane_pool_config& config, Error& error);
  [[nodiscard]] Buffer* find(std::uint64_t token);  // under the mutex; in a caller's hands
  void put_back(std::uint32_t index);
  void wake_sleeper();                // under the mutex
  void forget(std::uintptr_t first);  // under the mutex
  static void on_passed(void* cookie, std::int32_t status);

  std::unique_ptr<Backend> backend_;
  std::uint64_t budget_ = UINT64_MAX;
  std::byte* memory_ = nullptr;
  std::uint64_t buffer_bytes_ = 0;
  os::Fd returned_;  // counts up for threads asleep in acquire
  std::atomic<std::uint32_t> users_{0};

  mutable std::mutex mutex_;
  std::vector<Buffer> buffers_;
  std::vector<std::uint32_t> free_;
  std::map<std::uintptr_t, Stretch> registered_;  // by page-aligned address
  std::uint32_t sleepers_ = 0;
  bool failed_ = false;  // a stream did, and nobody was told
  feedlane_pool_stats counters_{};
  Burial* buried_ = nullptr;
};

// One in a list of things to be deleted later.
class Pool::Burial {
 public:
  virtual ~Burial() = default;
  Burial* next = nullptr;
};

}  // namespace feedlane::pinned
