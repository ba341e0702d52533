// SPDX-License-Identifier: Apache-2.0
// A member as the owner sees it: its process, its rings, its leases, and the memory that it was granted. Private to the
// owner.
//
// Used by one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "arena/index.hpp"
#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/limits.hpp"
#include "ring/doorbell.hpp"
#include "ring/spsc.hpp"
#include "shm/arena_layout.hpp"
#include "shm/segment.hpp"

namespace feedlane::arena {

class Peer {
 public:
  // offered: it has not attached. attached. leaving: it takes nothing more, but requests that it had sent are handled.
  // cut_off: its requests are ignored. In both of the latter it may still use entries.
  enum class State { offered, attached, leaving, cut_off };

  Peer(std::uint32_t number, const shm::ArenaPlan& plan) : number_(number), plan_(plan) {}
  // Creates the segments, rings and events.
  Status create(const os::SystemFiles& files, Error& error);

  [[nodiscard]] std::uint32_t number() const { return number_; }
  [[nodiscard]] shm::SegmentPair& pair() { return pair_; }
  // Inode of the member segment.
  [[nodiscard]] std::uint64_t file() const { return file_; }

  // ---- requests ----

  [[nodiscard]] bool has_request() const {
    return (state == State::attached || state == State::leaving) && requests_.peek(1) != 0;
  }
  // Whether it gets deliveries and answers.
  [[nodiscard]] bool is_receiving() const { return !is_over && (state == State::offered || state == State::attached); }
  // The oldest request, copied. There is one.
  [[nodiscard]] shm::ArenaRequest request() const;
  // `ring` follows: the member may wait for a free cell.
  void end_request() { requests_.release(1); }
  // False: the ring is full, which a member that follows the rules never causes.
  bool answer(const shm::ArenaAnswer& answer);
  void tell_cut_off();
  void ring() const { (void)bell_.ring(); }

  // ---- deliveries ----

  // Sends an entry of a stream now or, if the ring is full, later. The queue has room for all entries of the arena.
  void deliver(std::uint32_t entry, std::uint64_t word);
  // Sends what was not sent for lack of room.
  void send_more();
  // Calls `done(entry)` for each delivery that the member has taken since the last call. False: it has written an
  // impossible position.
  template <class F>
  bool collect(F&& done) {
    // Acquire: pairs with the release in ring::Consumer. The member leases an entry before it passes the delivery, so
    // its leases are looked at after this.
    const std::uint64_t position = row().delivery_position.load(std::memory_order_acquire);
    if (position - taken_ > sent_) return false;
    for (; taken_ != position; taken_++, sent_--) done(queue_[taken_ % queue_.size()].entry);
    return true;
  }
  // Calls `done(entry)` for each delivery that was not taken. Afterwards there is none.
  template <class F>
  void drop_deliveries(F&& done) {
    for (; sent_ + unsent_ != 0; taken_++, sent_ != 0 ? sent_-- : unsent_--) done(queue_[taken_ % queue_.size()].entry);
  }
  [[nodiscard]] bool has_unsent() const { return unsent_ != 0; }
  [[nodiscard]] bool has_taken() const {
    return is_receiving() && row().delivery_position.load(std::memory_order_relaxed) != taken_;  // `collect` decides
  }
  // Deliveries that the member has not taken.
  [[nodiscard]] std::uint64_t waiting() const { return sent_ + unsent_; }

  // ---- leases ----

  // Calls `found(id)` for each entry that this member uses. Called after Index::retire, or as a hint.
  template <class F>
  void for_each_lease(F&& found) const {
    // Acquire: pairs with the release in Member::claim. Limited, because the member may write anything.
    const std::uint64_t in_use = row().leases_in_use.load(std::memory_order_acquire);
    const auto end = in_use < plan_.geometry.leases ? in_use : std::uint64_t{plan_.geometry.leases};
    // Acquire: pairs with the release in Member::end_lease. The member's reads happen before the memory is used again.
    for (std::uint64_t i = 0; i < end; i++)
      if (const std::uint64_t word = words_.leases[i].load(std::memory_order_acquire); word != 0)
        found(EntryId::of(word));
  }
  [[nodiscard]] bool uses(EntryId id) const {
    bool is_found = false;
    for_each_lease([&](EntryId other) { is_found = is_found || other == id; });
    return is_found;
  }
  // When the member last used the entry; only a hint.
  [[nodiscard]] std::uint64_t used_ns(std::uint32_t entry) const {
    return words_.uses[entry].load(std::memory_order_relaxed);
  }
  [[nodiscard]] const shm::ArenaMemberRow& row() const { return *words_.row; }

  State state = State::offered;
  std::uint32_t segment = 0;
  std::int64_t pid = 0;
  os::Fd socket;
  os::Fd process;  // pidfd; none: not attached, or a member in the owner's process
  os::Fd member_event;
  os::Fd owner_event;
  bool is_over = false;               // its process has ended; requests that it had sent are still to be handled
  bool is_blocked = false;            // its oldest request waits for a free entry
  std::vector<std::uint32_t> grants;  // extents that it may publish from

 private:
  struct Delivery {
    std::uint32_t entry = 0;
    std::uint64_t word = 0;
  };

  std::uint32_t number_;
  const shm::ArenaPlan& plan_;
  shm::SegmentPair pair_;
  shm::ArenaAnswers* answers_words_ = nullptr;
  struct {  // that the member writes
    const shm::ArenaMemberRow* row = nullptr;
    const shm::Word64* leases = nullptr;
    const shm::Word64* uses = nullptr;
  } words_;
  ring::Consumer requests_;
  ring::Producer answers_;
  ring::Producer deliveries_;
  ring::Doorbell bell_;
  std::uint64_t file_ = 0;
  // A circle: deliveries in the ring that were not taken, followed by deliveries that were not sent.
  std::vector<Delivery> queue_;
  std::uint64_t taken_ = 0;  // position of the first
  std::uint64_t sent_ = 0;
  std::uint64_t unsent_ = 0;
};

}  // namespace feedlane::arena
