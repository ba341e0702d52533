// SPDX-License-Identifier: Apache-2.0
// The memory behind a loader's slots: registered with a device, and in doubt after a worker that ended badly.
//
// Who has data mapped for writing can punch holes into it, anywhere (MADV_REMOVE). The pages that a device has registered
// are then no longer those of the slot: the device goes on reading the old ones. And pages that were touched beyond the
// reserved part of a slot stay taken. So when a worker has ended without a word that it leaves, all slots are in doubt, and
// each is restored before the next task is sent with it: what lies beyond its reserved part goes back to the system, that
// part is reserved again, and registered again. Where the kernel lets nobody punch holes (shm::Holes::forbidden) no slot is
// ever in doubt.
//
// For the loader's one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "pinned/pool.hpp"
#include "shm/segment.hpp"

namespace feedlane::loader {

class SlotMemory {
 public:
  SlotMemory() = default;
  SlotMemory(const SlotMemory&) = delete;
  SlotMemory& operator=(const SlotMemory&) = delete;
  ~SlotMemory();

  void reset(const shm::Segments& segments);
  // The loader uses the pool from here on; register_slots: for its slots, not only for buffers.
  void use(pinned::Pool& pool);
  Status register_slots(Error& error);
  [[nodiscard]] pinned::Pool* pool() const { return pool_; }

  // A worker that could reach all slots has ended, and nobody knows what it did before.
  void doubt_all();
  [[nodiscard]] bool any_in_doubt() const { return in_doubt_ != 0; }
  // Whether a slot that is free should be restored right away; not after a failure, which its next task tells.
  [[nodiscard]] bool wants_restoring(std::uint32_t slot) const {
    return doubts_[slot] != 0 && (doubts_[slot] & failed) == 0;
  }
  // A slot that nobody uses, about to be sent with a task.
  Status restore(std::uint32_t slot, Error& error) {
    return doubts_[slot] == 0 ? FEEDLANE_OK : restore_in_doubt(slot, error);
  }
  // A slot with a batch that nobody had yet: the device is to see what is in it now.
  Status register_again(std::uint32_t slot, Error& error) {
    return (doubts_[slot] & registration) == 0 ? FEEDLANE_OK : register_in_doubt(slot, error);
  }

 private:
  enum Doubt : std::uint8_t { pages = 1, registration = 2, failed = 4 };
  Status restore_in_doubt(std::uint32_t slot, Error& error);
  Status register_in_doubt(std::uint32_t slot, Error& error);
  Status register_slot(std::uint32_t slot, Error& error);

  const shm::Segments* segments_ = nullptr;
  pinned::Pool* pool_ = nullptr;
  std::vector<bool> registered_;  // by slot; empty: slots aren't
  std::vector<std::uint8_t> doubts_;
  std::uint32_t in_doubt_ = 0;  // slots with any
};

}  // namespace feedlane::loader
