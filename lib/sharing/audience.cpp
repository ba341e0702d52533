// SPDX-License-Identifier: Apache-2.0
// Creates what the consumers of a feeder share, and delivers rounds to them.
#include "sharing/audience.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "os/process.hpp"

namespace feedlane::sharing {

Status Audience::open(Error& error) {
  const loader::Config& config = loader_.config();
  const shm::Segments& segments = loader_.memory().segments;
  const std::uint32_t slots = segments.plan().geometry.slots;
  constexpr std::uint32_t other_messages = 32;  // without a slot: begins, ends, failed batches
  Status s = shm::make_share_plan({slots, std::bit_ceil(slots + other_messages)}, plan_, error);
  if (s == FEEDLANE_OK) s = os::check_memory({plan_.catalogue_bytes}, plan_.catalogue_bytes, files_, error);
  if (s == FEEDLANE_OK)
    s = catalogue_.create_control(shm::SegmentKind::share_catalogue, plan_.catalogue_bytes, files_, error);
  if (s == FEEDLANE_OK) s = os::open_for_reading(segments.data_fd(), readable_data_, error);
  if (s == FEEDLANE_OK) s = os::open_pidfd(::getpid(), self_, error);
  if (s == FEEDLANE_OK) s = poller_.open(error);
  if (s == FEEDLANE_OK) s = host_bell.open(poller_, error);
  if (s != FEEDLANE_OK) return s;
  *catalogue_.control<shm::ShareGeometry>(sizeof(shm::SegmentHeader)) = plan_.geometry;
  // Relaxed: consumers get the segment later, with the welcome.
  catalogue_.control<shm::FeederBlock>(plan_.feeder)
      ->wants_returns.store(wants_returns_ ? 1 : 0, std::memory_order_relaxed);
  if (deals()) backlogs_.resize(config.consumers);
  owner_ = ::getpid();
  if (config.share_path.empty()) return s;
  return guests_.listen(config.share_path, error);
}

Audience::~Audience() {
  if (owner_ != ::getpid()) return;
  guests_.shut_down();
  for (const std::unique_ptr<Link>& link : links_.all) os::shut_down(link->socket.get());
}

// ---- delivering ----

// Batches per epoch for the consumer at `place`; -1: unknown.
std::int64_t Audience::batches_of_consumer(std::int32_t place) const {
  const std::int64_t batches = loader_.config().epoch_batches, consumers = loader_.config().consumers;
  if (!deals() || batches < 0) return batches;
  return batches / consumers + (loader_.config().share_tail && place < batches % consumers ? 1 : 0);
}

// Reserves memory for a message to every consumer. After that, only Stock::record can fail.
void Audience::prepare_round() {
  forget_old_states();
  for (const std::unique_ptr<Link>& link : links_.all) link->reserve(1);
  for (Parcels& backlog : backlogs_) reserve_more(backlog, 1);
}

// Reserves memory for messages to this place, whether or not it has a consumer.
void Audience::reserve_at(std::int32_t place, std::size_t more) {
  if (!deals()) return;
  const auto at = static_cast<std::size_t>(place);
  if (Link* const link = links_.at_place(at)) link->reserve(more);
  reserve_more(backlogs_[at], more);
}

// Makes a round of the gathered parcels. With share every there is a consumer.
void Audience::deliver(Parcels& gathered) {
  prepare_round();
  stock_.record(round_ + 1);
  round_++;
  for (std::size_t i = 0; i < gathered.size(); i++) {
    Parcel& parcel = gathered[i];
    parcel.round = round_;
    parcel.epoch = epoch.number;
    if (deals()) {
      deliver_to(i, parcel);
      continue;
    }
    for (const std::unique_ptr<Link>& link : links_.all) {
      if (!link->is_receiving() || !link->wants(parcel.epoch)) continue;
      if (link->deliver(parcel, false) && parcel.has_slot()) stock_.hold(parcel.slot);
    }
    if (parcel.has_slot()) stock_.put_back(parcel.slot);  // gives up the gatherer's hold
  }
  gathered.clear();
}

// Share deal: passes the gatherer's hold to the place.
void Audience::deliver_to(std::size_t place, const Parcel& parcel) {
  Link* const link = links_.at_place(place);
  if (link == nullptr) backlogs_[place].push_back(parcel);
  else if (!(link->wants(parcel.epoch) && link->deliver(parcel, false)) && parcel.has_slot())
    stock_.put_back(parcel.slot);
}

// An epoch may be stopped in the middle of a round. Its state then stays that of the previous round.
void Audience::announce(const Parcel& what) {
  prepare_round();
  if (what.kind != shm::DeliveryKind::stopped) stock_.record(round_ + 1);
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
}

// A consumer that holds a batch for long and takes others in between can request few of the states since that batch. If
// too many states are kept, the others are dropped.
void Audience::forget_old_states() {
  std::uint64_t oldest = round_;
  for (const std::unique_ptr<Link>& link : links_.all) oldest = std::min(oldest, link->oldest());
  for (const Parcels& backlog : backlogs_)
    if (!backlog.empty()) oldest = std::min(oldest, backlog.front().round - 1);
  stock_.forget_before(oldest);
  if (!stock_.has_many(2 * std::size_t{plan_.geometry.capacity})) return;
  std::vector<std::uint64_t> rounds{oldest};
  for (const std::unique_ptr<Link>& link : links_.all)
    link->for_each_round([&](std::uint64_t round) { rounds.push_back(round); });
  for (const Parcels& backlog : backlogs_) {
    if (!backlog.empty()) rounds.push_back(backlog.front().round - 1);  // of the begin that its next consumer gets
    for (const Parcel& parcel : backlog) rounds.push_back(parcel.round);
  }
  stock_.keep(std::move(rounds));
}

}  // namespace feedlane::sharing
