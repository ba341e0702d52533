// SPDX-License-Identifier: Apache-2.0
// The memory behind a loader's slots: its registration with a device, and its repair after a worker ended abnormally.
//
// A process that has data mapped for writing can punch holes anywhere into it (MADV_REMOVE). The slot then gets new
// pages, but a device keeps reading the old pages that were registered. Pages that were touched beyond the reserved
// part of a slot also stay allocated. So when a worker ends without a Leaving message, all slots are in doubt, and each
// is restored before the next task is sent with it: memory beyond its reserved part returns to the system, and the
// reserved part is reserved and registered again. If the kernel forbids holes (shm::Holes::forbidden), no slot is ever
// in doubt.
//
// A slot that has had no task for long gives back its pages beyond the reserved part, so that a few large batches don't
// occupy memory until the loader's end.
//
// Used by the loader's thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "loader/slot_registrations.hpp"
#include "pinned/pool.hpp"
#include "shm/segment.hpp"

namespace feedlane::loader {

class SlotMemory {
 public:
  SlotMemory() = default;
  SlotMemory(const SlotMemory&) = delete;
  SlotMemory& operator=(const SlotMemory&) = delete;

  void reset(const shm::Segments& segments);
  // From now on the loader uses the pool. register_slots uses it for the slots too, not only for buffers.
  void use(pinned::Pool& pool) { registrations_.use(pool); }
  Status register_slots(Error& error) {
    return registrations_.register_all(*segments_, pinned::Access::read_write, error);
  }
  [[nodiscard]] pinned::Pool* pool() const { return registrations_.pool(); }

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
  // Gives back the pages beyond the reserved part of a free slot, once after its task `last_task`. An error is ignored:
  // the pages stay. False: there was nothing to do.
  bool trim(std::uint32_t slot, std::uint64_t last_task);
  // Registers again a slot whose batch was not yet yielded, so that the device reads its current pages.
  Status register_again(std::uint32_t slot, Error& error) { return registrations_.renew(slot, error); }

 private:
  enum Doubt : std::uint8_t { pages = 1, failed = 2 };
  Status restore_in_doubt(std::uint32_t slot, Error& error);

  const shm::Segments* segments_ = nullptr;
  SlotRegistrations registrations_;
  std::vector<std::uint8_t> doubts_;
  std::vector<std::uint64_t> trimmed_;  // by slot: its last task when it was trimmed
  std::uint32_t in_doubt_ = 0;          // number of slots with any doubt
};

}  // namespace feedlane::loader
