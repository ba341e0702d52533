// SPDX-License-Identifier: Apache-2.0
// Records, ends and asks about the uses of batches by streams.
#include "lending/streams.hpp"

#include <algorithm>

#include "lending/leases.hpp"

namespace feedlane::lending {

Error stream_error(std::int32_t status) {
  Error error;
  if (status != FEEDLANE_OK)
    (void)error.fail(FEEDLANE_E_DEVICE, "a stream failed while the release of a batch was queued on it");
  return error;
}

Status StreamUse::ask(Error& error) {
  leases_->life().keep();
  leases_->expect_end();
  passed_ = {notify_, this};
  return leases_->pool()->backend().when_passed(stream_, passed_, error);
}

void StreamUse::end(const Error& stream) {
  // Once the use has ended, the slot and this object may belong to another batch.
  Life& life = leases_->life();
  pinned::Pool& pool = *leases_->pool();
  const pinned::Pool::Callback callback(pool);
  const tensors::SlotTable::Left left = leases_->end_use(token_, stream);
  if (left.freed) life.let_go_later(pool);  // the batch's count
  life.let_go_later(pool);                  // the count of `ask`
}

RecordedStreams::Slot& RecordedStreams::slot_of(const Leases& leases, std::uint64_t token) const {
  std::uint32_t slot = 0;
  (void)leases.slots().slot_of(token, slot);  // cannot fail: the token is of a batch that is or was held
  return slots_[slot];
}

Status RecordedStreams::add(Leases& leases, std::uint64_t token, void* stream, Error& error) {
  const std::lock_guard lock(mutex_);
  Slot& s = slot_of(leases, token);
  // Relaxed, as in `ask`: `ask` runs after the caller of this function has released its reference.
  if (s.token.load(std::memory_order_relaxed) != token) {
    s.count = 0;
    s.token.store(token, std::memory_order_relaxed);
  }
  const auto end = s.uses.begin() + s.count;
  if (std::any_of(s.uses.begin(), end, [&](const StreamUse& use) { return use.stream() == stream; }))
    return FEEDLANE_OK;
  if (end == s.uses.end())
    return error.refuse(FEEDLANE_E_LIMIT, "stream", s.count + 1, s.count,
                        "the batch is already used by {} other streams, the maximum", s.count);
  const Status status = leases.begin_use(token, error);
  if (status != FEEDLANE_OK) return status;
  *end = StreamUse(leases, token, stream,
                   [](void* use, std::int32_t code) { static_cast<StreamUse*>(use)->end(stream_error(code)); });
  s.count++;
  return FEEDLANE_OK;
}

void RecordedStreams::ask(const Leases& leases, std::uint64_t token) {
  Slot& s = slot_of(leases, token);
  // Another token means that this batch recorded no streams. Relaxed: if the token is equal, SlotTable's
  // acquire-release orders `add` before the release of the last reference.
  if (s.token.load(std::memory_order_relaxed) != token) return;
  for (std::uint32_t i = 0, count = s.count; i < count; i++) {
    Error error;
    if (s.uses[i].ask(error) != FEEDLANE_OK) s.uses[i].end(error);
  }
}

}  // namespace feedlane::lending
