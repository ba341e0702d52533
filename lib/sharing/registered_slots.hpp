// SPDX-License-Identifier: Apache-2.0
// A consumer's registration of the feeder's slots with its own device, and releases that wait for the device's streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "base/error.hpp"
#include "loader/slot_registrations.hpp"
#include "pinned/pool.hpp"
#include "shm/segment.hpp"

namespace feedlane::sharing {

// Thread safety: one thread at a time, except for pool, expect_end, on_end and any_release_pending: any thread.
class RegisteredSlots {
 public:
  // Registers all slots for reading. `segments` must outlive it, or `close`.
  Status open(pinned::Pool& pool, const shm::Segments& segments, Error& error) {
    segments_ = &segments;
    registrations_.use(pool);
    seen_doubts_ = doubts();
    return registrations_.register_all(segments, pinned::Access::read_only, error);
  }
  void close() { registrations_.close(); }
  // nullptr: the slots are not registered.
  [[nodiscard]] pinned::Pool* pool() const { return registrations_.pool(); }

  // Registers the slot of the next batch again if its pages may have been replaced. Requires `pool`.
  Status renew(std::uint32_t slot, Error& error) {
    const std::uint64_t now = doubts();
    if (std::exchange(seen_doubts_, now) != now) registrations_.doubt_all();
    return registrations_.renew(slot, error);
  }

  // Relaxed: the stream is asked after this call, so it reports later.
  void expect_end() { pending_releases_.fetch_add(1, std::memory_order_relaxed); }
  void on_end() { pending_releases_.fetch_sub(1, std::memory_order_release); }  // pairs with any_release_pending
  [[nodiscard]] bool any_release_pending() const {
    return pending_releases_.load(std::memory_order_acquire) != 0;  // pairs with on_end
  }

 private:
  // Acquire: pairs with the release in SlotMemory::doubt_all. The feeder puts new pages behind a slot before the slot's
  // next task, so before its next batch.
  [[nodiscard]] std::uint64_t doubts() const {
    return segments_->trainer_block()->doubted.load(std::memory_order_acquire);
  }

  const shm::Segments* segments_ = nullptr;
  loader::SlotRegistrations registrations_;
  std::uint64_t seen_doubts_ = 0;
  std::atomic<std::uint32_t> pending_releases_{0};
};

}  // namespace feedlane::sharing
