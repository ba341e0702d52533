// SPDX-License-Identifier: Apache-2.0
// The registration of slots with a device, and its repair after holes were punched into them.
//
// Only the reserved part of a slot is registered; tensors beyond it are copied to a device from pageable memory. Each
// slot is registered separately, so that one can be registered again while others are in use.
//
// Used by the loader's or the consumer's thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "pinned/pool.hpp"
#include "shm/segment.hpp"

namespace feedlane::loader {

class SlotRegistrations {
 public:
  SlotRegistrations() = default;
  SlotRegistrations(const SlotRegistrations&) = delete;
  SlotRegistrations& operator=(const SlotRegistrations&) = delete;
  ~SlotRegistrations() { close(); }

  // From now on the pool has one more user. register_all registers the slots, too.
  void use(pinned::Pool& pool);
  // `segments` must outlive the registrations, or `close`.
  Status register_all(const shm::Segments& segments, pinned::Access access, Error& error);
  // Unregisters all slots and lets the pool go. Does nothing a second time.
  void close();
  [[nodiscard]] pinned::Pool* pool() const { return pool_; }

  // The pages behind any slot may no longer be the registered ones.
  void doubt_all() { std::fill(doubted_.begin(), doubted_.end(), true); }
  // Registers a slot again if it is in doubt. After an error it stays in doubt.
  Status renew(std::uint32_t slot, Error& error) {
    return !doubted_.empty() && doubted_[slot] ? renew_in_doubt(slot, error) : FEEDLANE_OK;
  }

 private:
  Status register_slot(std::uint32_t slot, Error& error);
  Status renew_in_doubt(std::uint32_t slot, Error& error);

  pinned::Pool* pool_ = nullptr;
  const shm::Segments* segments_ = nullptr;
  pinned::Access access_ = pinned::Access::read_write;
  std::vector<bool> registered_;  // by slot; empty: slots are not registered
  std::vector<bool> doubted_;     // by slot, as registered_
};

}  // namespace feedlane::loader
