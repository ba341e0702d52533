// SPDX-License-Identifier: Apache-2.0
// The consumers of a feeder: what they share, and how a round gets to them.
#include "sharing/audience.hpp"

#include <unistd.h>

#include <bit>
#include <utility>

#include "os/process.hpp"

namespace feedlane::sharing {

Status Audience::open(Error& error) {
  const loader::Config& config = loader_.config();
  const shm::Segments& segments = loader_.memory().segments;
  const std::uint32_t slots = segments.plan().geometry.slots;
  constexpr std::uint32_t other_messages = 32;  // that hold no slot: begins, ends, failed batches
  Status s = shm::make_share_plan({slots, std::bit_ceil(slots + other_messages)}, plan_, error);
  if (s == FEEDLANE_OK) s = os::check_memory({plan_.catalogue_bytes}, plan_.catalogue_bytes, files_, error);
  if (s == FEEDLANE_OK)
    s = catalogue_.create_control(shm::SegmentKind::share_catalogue, plan_.catalogue_bytes, files_, error);
  if (s == FEEDLANE_OK) s = os::open_for_reading(segments.data_fd(), readable_data_, error);
  if (s == FEEDLANE_OK) s = os::open_pidfd(::getpid(), self_, error);
  if (s == FEEDLANE_OK) s = poller_.open(error);
  if (s != FEEDLANE_OK) return s;
  *catalogue_.control<shm::ShareGeometry>(sizeof(shm::SegmentHeader)) = plan_.geometry;
  if (deals()) backlogs_.resize(config.consumers);
  owner_ = ::getpid();
  if (config.share_path.empty()) return s;
  s = os::listen_at(config.share_path, listener_, file_, error);
  return s == FEEDLANE_OK ? poller_.add(listener_.get(), listener_tag, error) : s;
}

Audience::~Audience() {
  if (owner_ != ::getpid()) return;
  if (listener_) os::unlink_socket(file_);
  os::shut_down_listener(listener_.get());
  for (const std::unique_ptr<Link>& link : links_.all) os::shut_down(link->socket.get());
  for (const os::Fd& guest : guests_) os::shut_down(guest.get());
}

// ---- delivering ----

// Of the consumer at `place`; -1: unknown.
std::int64_t Audience::batches_of_consumer(std::int32_t place) const {
  const std::int64_t batches = loader_.epoch_batches(), consumers = loader_.config().consumers;
  if (!deals() || batches < 0) return batches;
  return batches / consumers + (loader_.config().share_tail && place < batches % consumers ? 1 : 0);
}

// What was gathered becomes a round. With share every there is a consumer.
void Audience::deliver(std::vector<Parcel>& gathered) {
  round_++;
  for (std::size_t i = 0; i < gathered.size(); i++) {
    Parcel parcel = gathered[i];
    parcel.round = round_;
    parcel.epoch = epoch.number;
    if (deals()) {
      deliver_to(i, std::move(parcel));
      continue;
    }
    for (const std::unique_ptr<Link>& link : links_.all) {
      if (!link->is_receiving() || !link->wants(parcel.epoch)) continue;
      if (link->deliver(parcel) && parcel.has_slot()) stock_.hold(parcel.slot);
    }
    if (parcel.has_slot()) stock_.put_back(parcel.slot);  // the hold of the gatherer
  }
  gathered.clear();
  stock_.record(round_);
  forget_old_states();
}

// Share deal: the place has the gatherer's hold from here on.
void Audience::deliver_to(std::size_t place, Parcel parcel) {
  Link* const link = links_.at_place(place);
  if (link == nullptr) backlogs_[place].push_back(std::move(parcel));
  else if (!(link->wants(parcel.epoch) && link->deliver(parcel)) && parcel.has_slot()) stock_.put_back(parcel.slot);
}

// What every consumer is told: begin, end, stopped.
void Audience::announce(const Parcel& what) {
  Parcel parcel = what;
  parcel.round = ++round_;
  parcel.epoch = epoch.number;
  for (const std::unique_ptr<Link>& link : links_.all) {
    if (!link->is_receiving()) continue;
    parcel.batch = batches_of_consumer(link->place());
    (void)link->deliver(parcel);
  }
  for (std::size_t place = 0; place < backlogs_.size(); place++) {
    if (links_.at_place(place) != nullptr) continue;
    parcel.batch = batches_of_consumer(static_cast<std::int32_t>(place));
    backlogs_[place].push_back(parcel);
  }
  stock_.record(round_);
  forget_old_states();
}

}  // namespace feedlane::sharing
