// SPDX-License-Identifier: Apache-2.0
// The feeder's side of one consumer: its socket, its segments, and the messages that were delivered and are not done.
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

// A message to a consumer, kept until it is done: a batch until its slot is returned, another message until it is
// taken.
struct Parcel {
  std::uint64_t round = 0;
  shm::DeliveryKind kind = shm::DeliveryKind::batch;
  std::uint32_t slot = 0;
  std::int64_t epoch = 0;
  std::int64_t batch = 0;
  std::shared_ptr<const Error> error;  // for failed and stopped

  [[nodiscard]] bool has_slot() const { return kind == shm::DeliveryKind::batch; }
  // Neither a batch nor a failed batch.
  [[nodiscard]] bool is_control() const {
    return kind != shm::DeliveryKind::batch && kind != shm::DeliveryKind::failed;
  }
};
using Parcels = std::vector<Parcel>;

// Reserves memory, so that pushing `more` parcels can't fail.
inline void reserve_more(Parcels& parcels, std::size_t more) {
  if (parcels.capacity() - parcels.size() < more)
    parcels.reserve(std::max(2 * parcels.capacity(), parcels.size() + more));
}

class Link {
 public:
  // offered and attached consumers get batches; evicted and leaving consumers only return batches.
  enum class State { offered, attached, evicted, leaving };

  // `number` is unique among the feeder's links; `place` is what the user calls the consumer's id.
  Link(std::uint32_t number, std::int32_t place, std::int32_t lag, std::int64_t evict_after_ns)
      : number_(number), place_(place), lag_(lag), evict_after_ns_(evict_after_ns) {}

  // Creates the segments and events that the welcome carries.
  Status create(const shm::SharePlan& plan, const os::SystemFiles& files, Error& error);

  [[nodiscard]] std::uint32_t number() const { return number_; }
  [[nodiscard]] std::int32_t place() const { return place_; }
  [[nodiscard]] std::int32_t lag() const { return lag_; }
  [[nodiscard]] std::int64_t evict_after_ns() const { return evict_after_ns_; }
  [[nodiscard]] bool is_receiving() const { return state == State::offered || state == State::attached; }
  // Whether the consumer gets batches, or holds some.
  [[nodiscard]] bool is_concerned() const { return is_receiving() || outstanding().held != 0; }
  [[nodiscard]] const shm::SegmentPair& segments() const { return segments_; }
  // Call once they were sent to the consumer.
  void close_segment_fds() { segments_.close_fds(); }

  // ---- delivering ----

  // Reserves memory for `more` messages that may find no room in the ring. Delivering them can't fail then.
  void reserve(std::size_t more) { reserve_more(unsent_, more); }
  // Whether everything is sent, and the ring has room for a batch and some other messages. Stays false once the
  // consumer has written invalid data.
  [[nodiscard]] bool has_room() { return unsent_.empty() && has_cell(); }
  [[nodiscard]] bool is_broken() const { return producer_.broken(); }
  // Whether the consumer wants batches of this epoch.
  [[nodiscard]] bool wants(std::int64_t epoch) const;
  // Sends a message, later if there is no room. False: it is a batch for an observer, which misses it.
  // rings: whether a consumer that sleeps is woken now. If not, call `ring` before the feeder waits for anything.
  bool deliver(const Parcel& parcel, bool rings = true);
  // Wakes the consumer, if it sleeps and was sent something since the last call.
  void ring() {
    if (std::exchange(bell_.is_due, false)) (void)bell_.bell.ring();
  }

  // ---- taking back ----

  // Whether the consumer has returned anything since the last `collect`.
  [[nodiscard]] bool has_news() const { return returns() != seen_returns_; }
  // Calls `free(parcel, is_unread)` for every batch that the consumer has returned. `free` may deliver to this link,
  // which needs memory: see reserve. collect itself needs none.
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
  // Calls `look(parcel)` for each batch that the consumer has not taken.
  template <class F>
  void for_each_waiting(F&& look) const {
    const std::uint64_t taken_through = taken();
    for (const Parcel& p : parcels_)
      if (p.has_slot() && p.round > taken_through) look(p);
  }
  // Revokes the messages up to `round` that the consumer has not taken, so that it can't take them any more. Calls
  // `take(parcel)` for each, in order. An observer keeps begins and ends.
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
  // Revokes all messages that the consumer has not taken.
  template <class F>
  void revoke(F&& take) {
    if (!parcels_.empty()) revoke(newest_, take);
    for (const Parcel& p : unsent_) {
      taken_back += p.has_slot() ? 1 : 0;
      take(p);
    }
    unsent_.clear();
  }
  // After the consumer's end and `revoke`: calls `free(slot)` for each batch that it had taken and not returned.
  template <class F>
  void drop(F&& free) {
    for (const Parcel& p : parcels_)
      if (p.has_slot()) free(p.slot);
    parcels_.clear();
  }
  // From now on the consumer's `next` returns E_HUNG.
  void tell_evicted();
  // Tells the consumer that the feeder lacks the slots which it holds, and that no batch is left to take.
  void tell_short();
  // Tells the consumer that the feeder has a free slot again.
  void end_short();

  // ---- queries ----

  // The newest round that the consumer has taken, at most the newest one sent.
  [[nodiscard]] std::uint64_t taken() const;
  // The oldest round whose state the consumer may request.
  [[nodiscard]] std::uint64_t oldest() const;
  // Calls `look(round)` for each round whose state it may request: in no order, some more than once.
  template <class F>
  void for_each_round(F&& look) const {
    look(asks_from());
    for (const Parcel& p : parcels_) look(p.round);
    for (const Parcel& p : unsent_) look(p.round);
  }
  // Number of messages that were delivered and are not done.
  [[nodiscard]] std::size_t out() const { return parcels_.size() + unsent_.size(); }
  // Numbers of batches. The consumer may take and return batches at any time.
  struct Outstanding {
    std::uint64_t waiting = 0;  // delivered and not taken
    std::uint64_t held = 0;     // taken and not returned
    [[nodiscard]] std::uint64_t all() const { return waiting + held; }
  };
  [[nodiscard]] Outstanding outstanding() const;
  // Grows with every batch that the consumer takes or returns, and with nothing else that it writes.
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
  // While the consumer keeps the feeder waiting: since when it has made no progress, and its progress then. since_ns is
  // 0 while the feeder doesn't wait for it.
  struct Stall {
    std::int64_t since_ns = 0;
    std::uint64_t progress = 0;
  } stall;

 private:
  [[nodiscard]] shm::DeliveryBlock& block() const { return *segments_.control<shm::DeliveryBlock>(plan_.block); }
  [[nodiscard]] const shm::ConsumerRow& row() const { return *segments_.data<shm::ConsumerRow>(plan_.row); }
  // Acquire: pairs with the release in Consumer::give_back.
  [[nodiscard]] std::uint64_t returns() const { return row().returns.load(std::memory_order_acquire); }
  // Acquire: pairs with the release in Consumer::give_back. So the consumer's reads happen before the slot's next use.
  [[nodiscard]] std::uint64_t returned(std::uint32_t slot) const {
    return segments_.data<shm::Word64>(plan_.returned)[slot].load(std::memory_order_acquire);
  }
  // A return counts only for the round in which the slot was delivered, and an unread one only if the round was
  // revoked.
  [[nodiscard]] bool is_returned(const Parcel& p, bool& is_unread) const {
    const std::uint64_t word = returned(p.slot);
    is_unread = word == (p.round | shm::returned_unread) && p.round <= revoked_through_;
    return word == p.round || is_unread;
  }
  [[nodiscard]] std::uint64_t asks_from() const;
  [[nodiscard]] bool has_cell();
  std::uint64_t revoke_through(std::uint64_t round);
  void send(const Parcel& parcel);  // does not ring
  void send_unsent();

  std::uint32_t number_;
  std::int32_t place_;
  std::int32_t lag_;
  std::int64_t evict_after_ns_;
  shm::SharePlan plan_;
  shm::SegmentPair segments_;
  ring::Producer producer_;
  struct Bell {
    ring::Doorbell bell;
    bool is_due = false;  // something was sent since it rang
  } bell_;
  Parcels parcels_;           // sent and not done, in the order of rounds; no more than the ring has cells
  Parcels unsent_;            // not sent for lack of room, in the order of rounds
  std::uint64_t newest_ = 0;  // newest round sent
  std::uint64_t seen_returns_ = 0;
  std::uint64_t dealt_with_ = 0;  // number of parcels that are done
  std::uint64_t most_taken_ = 0;  // newest round taken
  std::uint64_t revoked_through_ = 0;
  // Used by `collect`.
  struct Done {
    Parcel parcel;
    bool is_unread;
  };
  std::vector<Done> done_;
};

}  // namespace feedlane::sharing
