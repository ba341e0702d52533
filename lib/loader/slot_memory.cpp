// SPDX-License-Identifier: Apache-2.0
// Restores slots in doubt, and gives unused memory back.
#include "loader/slot_memory.hpp"

#include <algorithm>

namespace feedlane::loader {

void SlotMemory::reset(const shm::Segments& segments) {
  segments_ = &segments;
  doubts_.assign(segments.plan().geometry.slots, 0);
  trimmed_.assign(doubts_.size(), 0);
}

void SlotMemory::doubt_all() {
  if (!segments_->may_have_holes()) return;
  // Release: pairs with the acquire in sharing::RegisteredSlots::doubts. One thread of the loader at a time writes it.
  shm::Word64& doubted = segments_->trainer_block()->doubted;
  doubted.store(doubted.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  std::fill(doubts_.begin(), doubts_.end(), pages);
  registrations_.doubt_all();
  in_doubt_ = static_cast<std::uint32_t>(doubts_.size());
}

bool SlotMemory::trim(std::uint32_t slot, std::uint64_t last_task) {
  if (trimmed_[slot] == last_task || !segments_->may_have_holes()) return false;
  trimmed_[slot] = last_task;
  if (!segments_->has_pages_to_trim(slot)) return false;
  Error ignored;
  (void)segments_->trim_slot(slot, ignored);
  return true;
}

Status SlotMemory::restore_in_doubt(std::uint32_t slot, Error& error) {
  Status s = FEEDLANE_OK;
  if ((doubts_[slot] & pages) != 0) s = segments_->restore_slot(slot, error);  // before the registration
  if (s == FEEDLANE_OK) s = register_again(slot, error);
  if (s != FEEDLANE_OK) {
    doubts_[slot] |= failed;
    return s;
  }
  doubts_[slot] = 0;
  in_doubt_--;
  return s;
}

}  // namespace feedlane::loader
