// SPDX-License-Identifier: Apache-2.0
// The memory behind a loader's slots: its registration with a device, its repair after a worker ended abnormally, and its
// return to the system once a slot is not used any more.
//
// A process that has data mapped for writing can punch holes anywhere into it (MADV_REMOVE). The slot then gets new
// pages, but a device keeps reading the old pages that were registered. Pages that were touched beyond the reserved
// part of a slot also stay allocated. So when a worker ends without a Leaving message, all slots are in doubt, and each
// is restored before the next task is sent with it: memory beyond its reserved part returns to the system, and the
// reserved part is reserved and registered again. If the kernel forbids holes (shm::Holes::forbidden), no slot is ever
// in doubt.
//
// Used by the loader's thread only.
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
  // From now on the loader uses the pool. register_slots uses it for the slots too, not only for buffers.
  void use(pinned::Pool& pool);
  Status register_slots(Error& error);
  [[nodiscard]] pinned::Pool* pool() const { return pool_; }

  // A free slot was taken. True: now and then, slots that are not used any more should be given back.
  bool note_use(std::uint32_t slot);
  // Whether the slot was used before, and not within the last `long_unused` uses for each slot.
  [[nodiscard]] bool is_unused(std::uint32_t slot) const {
    return last_use_[slot] != never && last_use_[slot] + 1 < period_;
  }
  // Gives the memory beyond the reserved part of a free slot back. An error leaves it there.
  void give_back(std::uint32_t slot);

  // A worker that could write to all slots has ended, and its last actions are unknown.
  void doubt_all();
  [[nodiscard]] bool any_in_doubt() const { return in_doubt_ != 0; }
  // Whether a free slot should be restored right away. Not after a failure, which the slot's next task reports.
  [[nodiscard]] bool wants_restoring(std::uint32_t slot) const {
    return doubts_[slot] != 0 && (doubts_[slot] & failed) == 0;
  }
  // Restores an unused slot that is about to be sent with a task.
  Status restore(std::uint32_t slot, Error& error) {
    return doubts_[slot] == 0 ? FEEDLANE_OK : restore_in_doubt(slot, error);
  }
  // Registers again a slot whose batch was not yet yielded, so that the device reads its current pages.
  Status register_again(std::uint32_t slot, Error& error) {
    return (doubts_[slot] & registration) == 0 ? FEEDLANE_OK : register_in_doubt(slot, error);
  }

 private:
  enum Doubt : std::uint8_t { pages = 1, registration = 2, failed = 4 };
  static constexpr std::uint64_t long_unused = 64;
  static constexpr std::uint64_t never = UINT64_MAX;
  Status restore_in_doubt(std::uint32_t slot, Error& error);
  Status register_in_doubt(std::uint32_t slot, Error& error);
  Status register_slot(std::uint32_t slot, Error& error);

  const shm::Segments* segments_ = nullptr;
  pinned::Pool* pool_ = nullptr;
  std::vector<bool> registered_;  // by slot; empty: slots are not registered
  std::vector<std::uint8_t> doubts_;
  std::uint32_t in_doubt_ = 0;  // number of slots with any doubt
  std::uint64_t period_ = 0;    // of as many uses as there are slots, times long_unused
  std::uint64_t uses_ = 0;      // in this period
  std::vector<std::uint64_t> last_use_;  // the period, by slot; never: it has nothing to give back
};

}  // namespace feedlane::loader
