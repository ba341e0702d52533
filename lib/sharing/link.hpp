// SPDX-License-Identifier: Apache-2.0
// The feeder's hold on one consumer process: its socket, its segments, what was delivered to it and has not come back.
//
// Used by the feeder's thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "feedlane/share.h"
#include "os/fd.hpp"
#include "os/limits.hpp"
#include "ring/doorbell.hpp"
#include "ring/spsc.hpp"
#include "shm/segment.hpp"
#include "shm/share_layout.hpp"

namespace feedlane::sharing {

// A message to a consumer, until it is dealt with: a batch until its slot was returned, others until they were taken.
struct Parcel {
  std::uint64_t round = 0;
  shm::DeliveryKind kind = shm::DeliveryKind::batch;
  std::uint32_t slot = 0;
  std::int64_t epoch = 0;
  std::int64_t batch = 0;
  std::shared_ptr<const Error> error;  // failed, stopped

  [[nodiscard]] bool has_slot() const { return kind == shm::DeliveryKind::batch; }
  // No batch, failed or not.
  [[nodiscard]] bool is_control() const {
    return kind != shm::DeliveryKind::batch && kind != shm::DeliveryKind::failed;
  }
};
using Parcels = std::vector<Parcel>;

// Room for `more`, so that pushing as many can't fail.
inline void reserve_more(Parcels& parcels, std::size_t more) {
  if (parcels.capacity() - parcels.size() < more)
    parcels.reserve(std::max(2 * parcels.capacity(), parcels.size() + more));
}

class Link {
 public:
  // offered and attached ones get batches; evicted and leaving ones only return what they have.
  enum class State { offered, attached, evicted, leaving };

  // `number` is unique among the feeder's links; `place` is what the user calls the consumer's id.
  Link(std::uint32_t number, std::int32_t place, std::int32_t lag, std::int64_t evict_after_ns)
      : number_(number), place_(place), lag_(lag), evict_after_ns_(evict_after_ns) {}

  // The segments and events that the consumer is welcomed with.
  Status create(const shm::SharePlan& plan, const os::SystemFiles& files, Error& error);

  [[nodiscard]] std::uint32_t number() const { return number_; }
  [[nodiscard]] std::int32_t place() const { return place_; }
  [[nodiscard]] std::int32_t lag() const { return lag_; }
  [[nodiscard]] std::int64_t evict_after_ns() const { return evict_after_ns_; }
  [[nodiscard]] bool is_receiving() const { return state == State::offered || state == State::attached; }
  // Whether it gets batches, or holds some.
  [[nodiscard]] bool is_concerned() const { return is_receiving() || outstanding().held != 0; }
  [[nodiscard]] const shm::SegmentPair& segments() const { return segments_; }
  // Call when the consumer was sent them.
  void close_segment_fds() { segments_.close_fds(); }

  // ---- delivering ----

  // Memory for so many messages that find no room in the ring: delivering them can't fail then.
  void reserve(std::size_t more) { reserve_more(unsent_, more); }
  // Whether everything is sent, and the ring has room for a batch, and messages beside it. False for ever if the consumer's
  // words are invalid.
  [[nodiscard]] bool has_room() { return unsent_.empty() && has_cell(); }
  [[nodiscard]] bool is_broken() const { return producer_.broken(); }
  // Whether the consumer wants batches of this epoch.
  [[nodiscard]] bool wants(std::int64_t epoch) const;
  // What finds no room is sent later. False: it is an observer's batch, and missed.
  bool deliver(const Parcel& parcel);

  // ---- taking back ----

  // Whether it has returned anything since the last `collect`.
  [[nodiscard]] bool has_news() const { return returns() != seen_returns_; }
  // Calls `free(parcel, is_unread)` for every batch that it has returned. `free` may deliver to this link, for which there must
  // be memory: see reserve. It needs none itself.
  template <class F>
  void collect(F&& free) {
    seen_returns_ = returns();
    const std::uint64_t taken_through = taken();
    done_.clear();
    std::erase_if(parcels_, [&](const Parcel& p) {
      bool is_unread = false;
      const bool is_done = p.has_slot() ? is_returned(p, is_unread) : p.round <= taken_through;
      if (is_done && p.has_slot()) done_.push_back({p, is_unread});
      dealt_with_ += is_done ? 1 : 0;
      return is_done;
    });
    send_unsent();
    for (const auto& [parcel, is_unread] : done_) free(parcel, is_unread);
  }
  // Calls `look(parcel)` for each batch that it has not taken.
  template <class F>
  void for_each_waiting(F&& look) const {
    const std::uint64_t taken_through = taken();
    for (const Parcel& p : parcels_)
      if (p.has_slot() && p.round > taken_through) look(p);
  }
  // Takes back what it has not taken, up to `round`, and calls `take(parcel)` for each, in order. It can't take them any more.
  // An observer keeps begins and ends.
  template <class F>
  void revoke(std::uint64_t round, F&& take) {
    const std::uint64_t taken_through = revoke_through(round);
    std::erase_if(parcels_, [&](const Parcel& p) {
      if (p.round > round || p.round <= taken_through || (lag_ == FEEDLANE_LAG_OBSERVE && p.is_control())) return false;
      taken_back += p.has_slot() ? 1 : 0;
      take(p);
      return true;
    });
  }
  // The same with all of it.
  template <class F>
  void revoke(F&& take) {
    if (!parcels_.empty()) revoke(newest_, take);
    for (const Parcel& p : unsent_) {
      taken_back += p.has_slot() ? 1 : 0;
      take(p);
    }
    unsent_.clear();
  }
  // The consumer is gone, and all it had not taken is revoked: what it had taken and not returned.
  template <class F>
  void drop(F&& free) {
    for (const Parcel& p : parcels_)
      if (p.has_slot()) free(p.slot);
    parcels_.clear();
  }
  // From here on its calls return E_HUNG.
  void tell_evicted();
  // It holds slots that the feeder lacks, and has taken all that there is.
  void tell_short();
  // The feeder has a free slot again.
  void end_short();

  // ---- looking ----

  // The newest round that it has taken, no newer than the newest delivered.
  [[nodiscard]] std::uint64_t taken() const;
  // The oldest round that it may ask about.
  [[nodiscard]] std::uint64_t oldest() const;
  // Calls `look(round)` for each round that it may ask about: in no order, some more than once.
  template <class F>
  void for_each_round(F&& look) const {
    look(asks_from());
    for (const Parcel& p : parcels_) look(p.round);
    for (const Parcel& p : unsent_) look(p.round);
  }
  // Messages that were delivered and not dealt with.
  [[nodiscard]] std::size_t out() const { return parcels_.size() + unsent_.size(); }
  // Batches. The consumer may take and return some meanwhile.
  struct Outstanding {
    std::uint64_t waiting = 0;  // delivered and not taken
    std::uint64_t held = 0;     // taken and not returned
    [[nodiscard]] std::uint64_t all() const { return waiting + held; }
  };
  [[nodiscard]] Outstanding outstanding() const;
  // Grows with every batch that it takes or returns, and with nothing else that it writes.
  [[nodiscard]] std::uint64_t progress() {
    most_taken_ = std::max(most_taken_, taken());
    return dealt_with_ + most_taken_;
  }

  State state = State::offered;
  os::Fd socket;
  os::Fd process;  // pidfd; none: not attached, or a consumer in this process
  std::int64_t pid = 0;
  os::Fd consumer_event;
  os::Fd feeder_event;
  std::uint64_t delivered = 0;   // batches
  std::uint64_t taken_back = 0;  // batches
  // While it keeps the feeder waiting: since when it has made no progress, 0: it doesn't; and how far it was.
  struct Stall {
    std::int64_t since_ns = 0;
    std::uint64_t progress = 0;
  } stall;

 private:
  [[nodiscard]] shm::DeliveryBlock& block() const { return *segments_.control<shm::DeliveryBlock>(plan_.block); }
  [[nodiscard]] const shm::ConsumerRow& row() const { return *segments_.data<shm::ConsumerRow>(plan_.row); }
  // Acquire: pairs with the release in Consumer::give_back.
  [[nodiscard]] std::uint64_t returns() const { return row().returns.load(std::memory_order_acquire); }
  // Acquire: pairs with the release in Consumer::give_back, so that the consumer's reads happen before the slot's next use.
  [[nodiscard]] std::uint64_t returned(std::uint32_t slot) const {
    return segments_.data<shm::Word64>(plan_.returned)[slot].load(std::memory_order_acquire);
  }
  // Only a return of the round in which the slot was delivered counts, and unread only what was revoked.
  [[nodiscard]] bool is_returned(const Parcel& p, bool& is_unread) const {
    const std::uint64_t word = returned(p.slot);
    is_unread = word == (p.round | shm::returned_unread) && p.round <= revoked_through_;
    return word == p.round || is_unread;
  }
  [[nodiscard]] std::uint64_t asks_from() const;
  [[nodiscard]] bool has_cell();
  std::uint64_t revoke_through(std::uint64_t round);
  void send(const Parcel& parcel);
  void send_unsent();
  void ring() const { (void)bell_.ring(); }

  std::uint32_t number_;
  std::int32_t place_;
  std::int32_t lag_;
  std::int64_t evict_after_ns_;
  shm::SharePlan plan_;
  shm::SegmentPair segments_;
  ring::Producer producer_;
  ring::Doorbell bell_;
  Parcels parcels_;           // sent and not dealt with, in the order of rounds; no more than the ring has cells
  Parcels unsent_;            // for which there was no room, in the order of rounds
  std::uint64_t newest_ = 0;  // round that was sent
  std::uint64_t seen_returns_ = 0;
  std::uint64_t dealt_with_ = 0;  // parcels that it has returned
  std::uint64_t most_taken_ = 0;  // round
  std::uint64_t revoked_through_ = 0;
  // Of one `collect`.
  struct Done {
    Parcel parcel;
    bool is_unread;
  };
  std::vector<Done> done_;
};

}  // namespace feedlane::sharing
