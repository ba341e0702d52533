// SPDX-License-Identifier: Apache-2.0
// Registers slots with a device, once and again.
#include "loader/slot_registrations.hpp"

#include <new>
#include <utility>

namespace feedlane::loader {

using Owner = pinned::Pool::Owner;

void SlotRegistrations::use(pinned::Pool& pool) {
  pool_ = &pool;
  pool.add_user();
}

Status SlotRegistrations::register_all(const shm::Segments& segments, pinned::Access access, Error& error) {
  segments_ = &segments;
  access_ = access;
  registered_.assign(segments.plan().geometry.slots, false);
  doubted_.assign(registered_.size(), false);  // so that doubt_all allocates nothing
  for (std::uint32_t slot = 0; slot < registered_.size(); slot++)
    if (const Status s = register_slot(slot, error); s != FEEDLANE_OK) return s;
  return FEEDLANE_OK;
}

void SlotRegistrations::close() {
  if (pool_ == nullptr) return;
  Error unheard;
  for (std::uint32_t slot = 0; slot < registered_.size(); slot++)
    if (registered_[slot]) (void)pool_->unregister_memory(segments_->payload(slot), Owner::loader, unheard);
  registered_.clear();
  doubted_.clear();
  std::exchange(pool_, nullptr)->remove_user();
}

Status SlotRegistrations::register_slot(std::uint32_t slot, Error& error) {
  const Status s =
      pool_->register_memory(segments_->payload(slot), segments_->plan().slot_reserved, Owner::loader, error, access_);
  registered_[slot] = s == FEEDLANE_OK;
  return s;
}

Status SlotRegistrations::renew_in_doubt(std::uint32_t slot, Error& error) {
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
  doubted_[slot] = false;
  return FEEDLANE_OK;
}

}  // namespace feedlane::loader
