// SPDX-License-Identifier: Apache-2.0
// References to batches, and streams' uses of them.
#include "loader/leases.hpp"

namespace feedlane::loader {

const std::vector<feedlane_tensor>& Leases::tensors(std::uint64_t token) const {
  std::uint32_t slot = 0;
  (void)memory_.slots.slot_of(token, slot);  // it is held, so there is one
  return ledger_.at(slot).contents.made.tensors;
}

Status Leases::begin_use(std::uint64_t token, Error& error) {
  const Status s = memory_.slots.begin_use(token);
  if (s == FEEDLANE_OK) return s;
  return error.fail(s, "{}",
                    s == FEEDLANE_E_STALE ? "the batch was released, or there never was such a token"
                                          : "as many streams as can be counted use the batch");
}

arena::SlotTable::Left Leases::end_use(std::uint64_t token, const Error& stream) {
  if (stream.code != FEEDLANE_OK) events_.push(FEEDLANE_EVENT_DEVICE_FAILED, stream);
  const arena::SlotTable::Left left = memory_.slots.end_use(token);
  // Release: pairs with the acquire in Memory::any_release_pending.
  memory_.pending_releases.fetch_sub(1, std::memory_order_release);
  wakeups_
      .wake_inline_too();  // whether it was the last or not: `next` may be about to say that the trainer holds everything
  return left;
}

}  // namespace feedlane::loader
