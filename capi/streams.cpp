// SPDX-License-Identifier: Apache-2.0
#include "streams.hpp"

#include <algorithm>

using namespace feedlane;
using namespace feedlane::capi;

Error feedlane::capi::stream_error(std::int32_t status) {
  Error error;
  if (status != FEEDLANE_OK) (void)error.fail(FEEDLANE_E_DEVICE, "a stream failed with the release of a batch on it");
  return error;
}

Status feedlane::capi::StreamUse::ask(Error& error) {
  loader_->lives.fetch_add(1, std::memory_order_relaxed);  // the caller's own one is there meanwhile
  loader_->loader->leases().expect_end();
  passed_ = {notify_, this};
  return loader_->loader->leases().pool()->backend().when_passed(stream_, passed_, error);
}

void feedlane::capi::StreamUse::end(const Error& stream) {
  feedlane_loader* const l = loader_;  // the slot, and this with it, may be another batch's when the use has ended
  const arena::SlotTable::Left left = l->loader->leases().end_use(token_, stream);
  if (left.freed) let_go_later(l);  // the batch's own life
  let_go_later(l);                  // that of `ask`
}

feedlane::capi::RecordedStreams::Slot& feedlane::capi::RecordedStreams::slot_of(const feedlane_loader* l,
                                                                                std::uint64_t token) const {
  std::uint32_t slot = 0;
  (void)l->loader->leases().slots().slot_of(token, slot);  // the batch was held just now, so it is one
  return slots_[slot];
}

Status feedlane::capi::RecordedStreams::add(feedlane_loader* l, std::uint64_t token, void* stream, Error& error) {
  const std::lock_guard lock(mutex_);
  Slot& s = slot_of(l, token);
  // Relaxed, as in `ask`: that comes behind the release of the reference that the caller of this has.
  if (s.token.load(std::memory_order_relaxed) != token) {
    s.count = 0;
    s.token.store(token, std::memory_order_relaxed);
  }
  const auto end = s.uses.begin() + s.count;
  if (std::any_of(s.uses.begin(), end, [&](const StreamUse& use) { return use.stream() == stream; }))
    return FEEDLANE_OK;
  if (end == s.uses.end())
    return error.refuse(FEEDLANE_E_LIMIT, "stream", s.count + 1, s.count, "{} other streams use the batch already",
                        s.count);
  const Status status = l->loader->leases().begin_use(token, error);
  if (status != FEEDLANE_OK) return status;
  *end = StreamUse(l, token, stream,
                   [](void* use, std::int32_t code) { static_cast<StreamUse*>(use)->end(stream_error(code)); });
  s.count++;
  return FEEDLANE_OK;
}

void feedlane::capi::RecordedStreams::ask(const feedlane_loader* l, std::uint64_t token) {
  Slot& s = slot_of(l, token);
  // Another batch's already: this one had no streams. Relaxed: if it is this one's, `add` comes before the reference that was
  // given back last, by SlotTable's acquire-release.
  if (s.token.load(std::memory_order_relaxed) != token) return;
  for (std::uint32_t i = 0, count = s.count; i < count; i++) {
    Error error;
    if (s.uses[i].ask(error) != FEEDLANE_OK) s.uses[i].end(error);
  }
}

Status feedlane::capi::give_back(feedlane_loader* l, std::uint64_t token) {
  // With streams to be asked there is a life needed besides the reference. Relaxed: the caller's reference has one meanwhile.
  const bool asks = l->streams != nullptr;
  if (asks) l->lives.fetch_add(1, std::memory_order_relaxed);
  arena::SlotTable::Left left;
  const Status s = l->loader->leases().release(token, left);
  if (left.freed) let_go(l);
  else if (left.unreferenced && asks) l->streams->ask(l, token);
  if (asks) let_go(l);
  return s;
}
