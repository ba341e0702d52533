// SPDX-License-Identifier: Apache-2.0
// Registers slots with a device, and restores those in doubt.
#include "loader/slot_memory.hpp"

#include <algorithm>
#include <new>

namespace feedlane::loader {

using Owner = pinned::Pool::Owner;

SlotMemory::~SlotMemory() {
  if (pool_ == nullptr) return;
  Error unheard;
  for (std::uint32_t slot = 0; slot < registered_.size(); slot++)
    if (registered_[slot]) (void)pool_->unregister_memory(segments_->payload(slot), Owner::loader, unheard);
  pool_->remove_user();
}

void SlotMemory::reset(const shm::Segments& segments) {
  segments_ = &segments;
  doubts_.assign(segments.plan().geometry.slots, 0);
  trimmed_.assign(doubts_.size(), 0);
}

void SlotMemory::use(pinned::Pool& pool) {
  pool_ = &pool;
  pool.add_user();
}

// Registers only the reserved part; tensors beyond it are copied to a device from pageable memory. Registers each slot
// separately, so that one slot can be registered again while others are in use.
Status SlotMemory::register_slots(Error& error) {
  registered_.assign(doubts_.size(), false);
  for (std::uint32_t slot = 0; slot < registered_.size(); slot++)
    if (const Status s = register_slot(slot, error); s != FEEDLANE_OK) return s;
  return FEEDLANE_OK;
}

Status SlotMemory::register_slot(std::uint32_t slot, Error& error) {
  const Status s =
      pool_->register_memory(segments_->payload(slot), segments_->plan().slot_reserved, Owner::loader, error);
  registered_[slot] = s == FEEDLANE_OK;
  return s;
}

void SlotMemory::doubt_all() {
  if (!segments_->may_have_holes()) return;
  const auto all = static_cast<std::uint8_t>(registered_.empty() ? pages : pages | registration);
  std::fill(doubts_.begin(), doubts_.end(), all);
  in_doubt_ = static_cast<std::uint32_t>(doubts_.size());
}

void SlotMemory::trim(std::uint32_t slot, std::uint64_t last_task) {
  if (trimmed_[slot] == last_task || !segments_->may_have_holes()) return;
  trimmed_[slot] = last_task;
  Error ignored;
  (void)segments_->trim_slot(slot, ignored);
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

Status SlotMemory::register_in_doubt(std::uint32_t slot, Error& error) {
  if (registered_[slot]) {
    if (const Status s = pool_->unregister_memory(segments_->payload(slot), Owner::loader, error); s != FEEDLANE_OK)
      return s;
    registered_[slot] = false;
  }
  try {
    if (const Status s = register_slot(slot, error); s != FEEDLANE_OK) return s;
  } catch (const std::bad_alloc&) {
    return error.fail(FEEDLANE_E_MEMORY, "out of memory");
  }
  doubts_[slot] &= static_cast<std::uint8_t>(~registration);
  return FEEDLANE_OK;
}

}  // namespace feedlane::loader
