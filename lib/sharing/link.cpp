// SPDX-License-Identifier: Apache-2.0
// Writes one consumer's delivery ring, and reads the consumer's row.
#include "sharing/link.hpp"

#include <algorithm>

#include "os/event.hpp"
#include "ring/fence.hpp"

namespace feedlane::sharing {
namespace {

// Cells that batches leave free for other messages.
constexpr std::uint32_t spare_cells = 4;

// Called when another epoch begins. Drops the previous one if none of its messages was sent and none is a batch.
// Otherwise begins and ends would pile up while the consumer reads nothing. The oldest epoch stays, because the
// consumer may be waiting for its end.
void forget_empty_epoch(Parcels& unsent) {
  if (unsent.empty() || unsent.back().epoch == unsent.front().epoch) return;
  const std::int64_t last = unsent.back().epoch;
  const auto its = std::find_if(unsent.begin(), unsent.end(), [=](const Parcel& p) { return p.epoch == last; });
  if (std::all_of(its, unsent.end(), [](const Parcel& p) { return p.is_control(); })) unsent.erase(its, unsent.end());
}

}  // namespace

Status Link::create(const shm::SharePlan& plan, const os::SystemFiles& files, Error& error) {
  plan_ = plan;
  Status s = segments_.create(shm::SegmentKind::share_delivery, plan.delivery_bytes, plan.returns_bytes,
                              {plan.returns_bytes}, files, error);
  if (s == FEEDLANE_OK) s = os::create_event(consumer_event, error);
  if (s == FEEDLANE_OK) s = os::create_event(feeder_event, error);
  if (s != FEEDLANE_OK) return s;
  *segments_.control<shm::ShareGeometry>(sizeof(shm::SegmentHeader)) = plan.geometry;
  const ring::Cells cells{segments_.control<std::byte>(plan.cells), shm::delivery_cell_bytes, plan.geometry.capacity};
  producer_ = ring::Producer(cells, 0, &row().position);
  bell_.bell = ring::Doorbell(&row().sleeping, consumer_event.get());
  parcels_.reserve(plan.geometry.capacity);
  done_.reserve(plan.geometry.capacity);
  return s;
}

// ---- delivering ----

bool Link::has_cell() {
  // Reserves a single cell, because a reserve stops at the end of the memory, and the other cells may be at its
  // beginning.
  return producer_.reserve(1) != 0 && !producer_.broken() && parcels_.size() + spare_cells < plan_.geometry.capacity;
}

bool Link::wants(std::int64_t epoch) const {
  // Relaxed: if the store is seen late, the consumer gets batches that it returns at once.
  return epoch >= static_cast<std::int64_t>(row().skip_before.load(std::memory_order_relaxed));
}

bool Link::deliver(const Parcel& parcel, bool rings) {
  send_unsent();
  if (has_room()) {
    send(parcel);
    if (rings) ring();
    return true;
  }
  if (lag_ == FEEDLANE_LAG_OBSERVE && !parcel.is_control()) {
    taken_back += parcel.has_slot() ? 1 : 0;
    return false;
  }
  if (parcel.kind == shm::DeliveryKind::begin) forget_empty_epoch(unsent_);
  unsent_.push_back(parcel);
  return true;
}

// The ring of a consumer that reads nothing for long fills up: an observer's with revoked messages, another consumer's
// with begins and ends of stopped epochs. A consumer that takes over a place gets all messages that were kept for it.
void Link::send_unsent() {
  std::size_t sent = 0;
  while (sent < unsent_.size() && has_cell()) send(unsent_[sent++]);
  if (sent != 0) ring();
  unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(sent));
}

void Link::send(const Parcel& parcel) {
  parcels_.push_back(parcel);
  newest_ = parcel.round;
  delivered += parcel.has_slot() ? 1 : 0;
  auto& message = *reinterpret_cast<shm::DeliveryMessage*>(producer_.message(0));
  message.round = parcel.round;
  message.kind = static_cast<std::uint32_t>(parcel.kind);
  message.slot = parcel.slot;
  message.epoch = parcel.epoch;
  message.batch = parcel.batch;
  if (parcel.error != nullptr) {
    message.status = parcel.error->code;
    message.worker = parcel.error->worker;
    message.sample = parcel.error->sample;
    copy_text(message.text, sizeof message.text, parcel.error->text);
  }
  producer_.commit(1);
  bell_.is_due = true;
}

// ---- taking back ----

// revoked_through only grows, because slots of batches that were revoked before may be in use again.
std::uint64_t Link::revoke_through(std::uint64_t round) {
  // Relaxed: the fence orders it before the load. Pairs with Consumer::take: at least one of the two sees the other's
  // store.
  revoked_through_ = std::max(revoked_through_, round);
  block().revoked_through.store(revoked_through_, std::memory_order_relaxed);
  ring::doorbell_fence();
  return taken();
}

void Link::tell_evicted() {
  // Relaxed: a consumer reads the flag whenever it finds no message. If it misses the flag, the doorbell wakes it.
  block().is_evicted.store(1, std::memory_order_relaxed);
  (void)bell_.bell.ring();
}

void Link::tell_short() {
  // Relaxed: see tell_evicted. If a consumer reads an old value of either, it waits until the doorbell rings.
  shm::Word64& after = block().short_after;
  shm::Word64& at = block().short_returns;
  if (after.load(std::memory_order_relaxed) == newest_ && at.load(std::memory_order_relaxed) == seen_returns_) return;
  at.store(seen_returns_, std::memory_order_relaxed);
  after.store(newest_, std::memory_order_relaxed);
  (void)bell_.bell.ring();
}

void Link::end_short() {
  // Relaxed: see tell_evicted. No round is 0.
  block().short_after.store(0, std::memory_order_relaxed);
}

// ---- looking ----

std::uint64_t Link::taken() const {
  // Acquire: pairs with the release in Consumer::take.
  return std::min(row().taken.load(std::memory_order_acquire), newest_);
}

// The round of a state without a token: the newest one that the consumer took and wanted.
std::uint64_t Link::asks_from() const {
  // Relaxed: it is stored after the round was taken. An older value only keeps a state for longer than needed.
  const std::uint64_t newest = row().newest.load(std::memory_order_relaxed);
  return newest == 0 ? taken() : std::min(newest, taken());
}

std::uint64_t Link::oldest() const {
  std::uint64_t oldest = asks_from();
  if (!parcels_.empty()) oldest = std::min(oldest, parcels_.front().round);
  return unsent_.empty() ? oldest : std::min(oldest, unsent_.front().round);
}

Link::Outstanding Link::outstanding() const {
  const std::uint64_t taken_through = taken();
  Outstanding out;
  for (const Parcel& p : parcels_) {
    if (!p.has_slot()) continue;
    if (p.round > taken_through) out.waiting++;
    else if (bool is_unread = false; !is_returned(p, is_unread)) out.held++;
  }
  for (const Parcel& p : unsent_) out.waiting += p.has_slot() ? 1 : 0;
  return out;
}

}  // namespace feedlane::sharing
