// SPDX-License-Identifier: Apache-2.0
// The owner of an arena: admits members, grants them memory, enters what they publish into the index, delivers entries
// of streams, evicts entries, and cleans up after members that end.
//
//   owner.cpp      requests, entries, memory
//   admission.cpp  members: admission, their sockets, their end
//
// The owner's process uses its own arena through a Member too, whose number is 0.
//
// Used by one thread at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arena/memory_waits.hpp"
#include "arena/peer.hpp"
#include "arena/store.hpp"
#include "arena/wants.hpp"
#include "base/error.hpp"
#include "feedlane/arena.h"
#include "greeting/arena.hpp"
#include "greeting/guests.hpp"
#include "monitor/events.hpp"
#include "os/fd.hpp"
#include "os/limits.hpp"
#include "os/poller.hpp"
#include "ring/waiter.hpp"
#include "shm/arena_layout.hpp"
#include "shm/segment.hpp"

namespace feedlane::arena {

class Owner {
 public:
  // `events` must outlive the owner.
  static Status create(const shm::ArenaPlan& plan, std::int32_t when_full, const std::string& path,
                       const os::SystemFiles& files, monitor::EventQueue& events, std::unique_ptr<Owner>& out,
                       Error& error);
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  // Shuts the sockets down, so that members notice the end even if a forked child holds the descriptors.
  ~Owner();

  // Returns a connected socket for one member. E_LIMIT. `is_asleep`: see `serve`.
  Status offer(bool is_asleep, os::Fd& theirs, Error& error);
  // Handles everything that is pending. True: there was something. `is_asleep`: another thread sleeps on the waiter's
  // descriptors, and will handle their events; the waiter must be left alone.
  bool serve(bool is_asleep = false);
  // The last look before a sleep: whether there is something to serve. May serve some of it.
  bool sweep();
  [[nodiscard]] ring::Waiter& waiter() { return waiter_; }
  void handle(const os::Poller::Event& event);
  // Opened for reading; nullptr: the segment is gone.
  [[nodiscard]] const os::Fd* readable(std::uint32_t segment, std::uint32_t generation) const {
    return store_->memory.readable(segment, generation);
  }
  [[nodiscard]] MemoryWaits& waits() { return waits_; }
  // The next `serve` looks at descriptors.
  void expect_events() { has_events_ = true; }
  void fill_in(feedlane_arena_stats& stats);

 private:
  Owner(const shm::ArenaPlan& plan, std::int32_t when_full, const os::SystemFiles& files, monitor::EventQueue& events);

  // ---- owner.cpp ----

  enum class Result { done, blocked, invalid };
  bool serve_requests(Peer& peer);
  Result process(Peer& peer, const shm::ArenaRequest& request);
  Result publish(Peer& peer, const shm::ArenaRequest& request);
  Result give_back(Peer& peer, const shm::ArenaRequest& request);
  Result want_memory(Peer& peer, const shm::ArenaRequest& request);
  Result want_key(Peer& peer, const shm::ArenaRequest& request);
  Result drop_key(Peer& peer, const shm::ArenaRequest& request);
  // Makes a part of one of the member's grants a separate extent. none: it is no such part, or `is_short`.
  std::uint32_t cut_grant(Peer& peer, std::uint64_t offset, std::uint64_t bytes, bool& is_short);
  void grant(Peer& peer, std::uint64_t ticket, std::uint32_t extent);
  void refuse_memory(Peer& peer, std::uint64_t ticket, std::uint64_t bytes, Status status);
  void tell(const Wants::Waiter& waiter, shm::ArenaAnswerKind kind);
  void send_to_all(Peer& maker, std::uint32_t entry);
  bool serve_waiting();
  void collect_deliveries(Peer& peer);
  void set_short(bool is_short);

  // ---- figures.cpp ----

  void write_figures(bool is_about_to_sleep);

  // ---- admission.cpp ----

  Status make_peer(std::unique_ptr<Peer>& peer, Error& error);
  Status admit(std::unique_ptr<Peer> peer, os::Fd socket, Error& error);
  Status welcome(Peer& peer, Error& error);
  void handle_events();
  void handle_guest(std::uint64_t tag);
  void read_message(Peer& peer);
  void answer_segment(const Peer& peer, const SegmentRequest& request) const;
  void cut_off(Peer& peer, const char* why);
  void clean_up();
  void forget(const Peer& peer);
  void end(Peer& peer, const char* how);
  bool bury_ended();
  void report(std::int32_t kind, const Peer& peer, const char* what);
  [[nodiscard]] Peer* find(std::uint32_t number) const;

  shm::ArenaPlan plan_;
  std::int32_t when_full_;
  os::SystemFiles files_;
  monitor::EventQueue& events_;
  shm::SegmentPair control_;
  ring::Waiter waiter_;
  greeting::Guests guests_{waiter_.poller(), asking_magic, sizeof(greeting::Word)};
  os::Fd self_;
  pid_t owner_ = 0;
  std::unique_ptr<Store> store_;
  Wants wants_;
  Peers peers_;
  MemoryWaits waits_;
  std::uint32_t next_number_ = 0;
  std::uint64_t ended_hits_ = 0;
  std::uint64_t ended_misses_ = 0;
  std::int64_t polled_ns_ = 0;
  std::int64_t counted_waiting_ns_ = 0;
  bool has_events_ = false;
  bool needs_clean_up_ = false;
  bool figures_are_old_ = true;
};

}  // namespace feedlane::arena
