// SPDX-License-Identifier: Apache-2.0
// A process's end of an arena: puts, gets and receives entries. The owner's process has one too, beside its Owner.
//
//   joining.cpp  the greeting, the segments of other members
//   member.cpp   gets and leases
//   putting.cpp  reservations
//
// Thread safety: any thread. A get that finds its entry takes no lock. All else is under the line's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "arena/claims.hpp"
#include "arena/contents.hpp"
#include "arena/grants.hpp"
#include "arena/index.hpp"
#include "arena/line.hpp"
#include "arena/views.hpp"
#include "base/error.hpp"
#include "feedlane/arena.h"
#include "greeting/arena.hpp"
#include "lending/leases.hpp"
#include "lending/lender.hpp"
#include "monitor/events.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/socket.hpp"
#include "shm/arena_layout.hpp"
#include "shm/segment.hpp"
#include "tensors/slot_table.hpp"

namespace feedlane::arena {

class Member final : private lending::Lender {
 public:
  // Owns the socket in every case. `owner`: that of this process, whose socket it is; or nullptr.
  static Status join(os::Fd socket, Owner* owner, monitor::EventQueue& events, os::Deadline deadline,
                     std::unique_ptr<Member>& out, Error& error);

  Status get(const Key& key, bool would_make, os::Deadline deadline, feedlane_batch& out, Error& error);
  Status reserve(const feedlane_put& put, os::Deadline deadline, feedlane_batch& out, Error& error);
  Status publish(std::uint64_t token, os::Deadline deadline, Error& error);
  Status receive(os::Deadline deadline, feedlane_batch& out, Error& error);
  // Serves members until the deadline.
  Status serve(os::Deadline deadline, Error& error);
  // AGAIN: something can be received.
  Status poll(Error& error);
  Status drop(const Key& key, os::Deadline deadline, Error& error);
  Status arm(Error& error);
  [[nodiscard]] int wait_fd() { return line_.wait_fd(); }
  void fill_in(feedlane_arena_stats& stats);
  // The owner's: see Owner::offer.
  Status offer(os::Fd& theirs, Error& error);

  // Any signal handler too. Ends one wait.
  void interrupt() { line_.interrupt(); }
  // Ends all waits, now and later.
  void close() { line_.close(); }
  // Called once after `close`. Ends the owner of this process, if it has one.
  void leave(std::unique_ptr<Owner>& owner) noexcept { line_.leave(owner); }
  [[nodiscard]] lending::Leases& leases() { return leases_of_host_; }

 private:
  Member(Owner* owner, monitor::EventQueue& events);
  using Lock = Line::Lock;

  // A lease or a reservation of this process, by number.
  struct Held {
    Described described;
    std::uint32_t view = Views::none;
    bool is_put = false;
    Key key;
    std::uint32_t flags = 0;
    std::uint64_t offset = 0;  // of the put, in the own segment
    std::uint64_t bytes = 0;
  };

  // ---- joining.cpp ----

  Status receive_welcome(int socket, os::Deadline deadline, ArenaWelcome& welcome, Error& error);
  Status read_welcome(const ArenaWelcome& welcome, os::Received& received, Error& error);
  // Maps the segment of an entry. AGAIN: it is gone.
  Status open_segment(std::uint32_t segment, std::uint32_t generation, Error& error);

  // ---- member.cpp ----

  Status try_get(const Key& key, std::uint64_t hash, feedlane_batch& out, Error& error, Lock* lock);
  // Leases the entry and describes it. AGAIN: it is not live any more. `lock`: held, or nullptr.
  Status lease(EntryId id, feedlane_batch& out, Error& error, Lock* lock);
  Status describe(std::uint32_t number, EntryId id, feedlane_batch& out, Error& error, Lock* lock);
  Status await_key(const Key& key, std::uint64_t hash, bool would_make, os::Deadline deadline, feedlane_batch& out,
                   Error& error);
  Status await_own_changes(Error& error);
  bool claim(std::uint32_t& number);
  void unclaim(std::uint32_t number) { claims_->put_back(number); }
  void end_lease(std::uint32_t number);
  Status refuse_held(Error& error) const;

  // ---- Lender ----

  [[nodiscard]] tensors::SlotTable& slots() override { return slots_; }
  [[nodiscard]] pinned::Pool* pool() const override { return nullptr; }
  [[nodiscard]] const std::vector<feedlane_tensor>& tensors(std::uint32_t number) const override {
    return held_[number].described.tensors;
  }
  [[nodiscard]] bool is_read_only(std::uint32_t number) const override { return !held_[number].is_put; }
  void on_freed(std::uint32_t number) override;
  void expect_end() override {}
  void on_end() override {}

  Line line_;  // the first: its end tells the owner that all memory is unmapped
  shm::ArenaPlan plan_;
  shm::SegmentPair control_;
  shm::SegmentPair pair_;  // answers (for reading) and member
  shm::Mapping payload_;   // the own segment, for writing
  std::unique_ptr<Views> views_;
  IndexView index_;
  shm::ArenaMemberRow* row_ = nullptr;
  shm::Word64* lease_words_ = nullptr;
  shm::Word64* use_words_ = nullptr;
  std::uint32_t number_ = 0;
  Grants grants_{line_, plan_};
  std::optional<Claims> claims_;
  std::vector<Held> held_;
  shm::LoaderCounters counters_{};
  tensors::SlotTable slots_;
  lending::Leases leases_of_host_;
};

}  // namespace feedlane::arena
