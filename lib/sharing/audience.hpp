// SPDX-License-Identifier: Apache-2.0
// The consumers of a feeder. Audience admits them, delivers rounds to them, takes batches back, and evicts consumers.
// Shortage determines which consumers keep the feeder waiting.
//
//   audience.cpp   delivers rounds
//   retrieval.cpp  returned batches, consumers that end, evictions
//   admission.cpp  admission of consumers, and their messages
//
// A round is the unit of delivery: with share every, one batch for every consumer; with share deal, one batch per
// place. Each message carries the number of its round. See docs/sharing.md.
//
// Used by the feeder's thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "feedlane/share.h"
#include "greeting/guests.hpp"
#include "greeting/share.hpp"
#include "loader/loader.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/limits.hpp"
#include "os/poller.hpp"
#include "sharing/host_bell.hpp"
#include "sharing/links.hpp"
#include "sharing/shortage.hpp"
#include "sharing/stock.hpp"

namespace feedlane::sharing {

class Audience {
 public:
  // The loader and the stock must outlive the audience.
  Audience(loader::Loader& loader, Stock& stock, const os::SystemFiles& files)
      : loader_(loader), stock_(stock), files_(files) {}
  Audience(const Audience&) = delete;
  Audience& operator=(const Audience&) = delete;
  // Shuts the sockets down, so that consumers notice the end even if a forked child holds the descriptors.
  ~Audience();
  // Creates what all consumers share, and listens at config.share_path.
  Status open(Error& error);

  struct Epoch {
    std::int64_t number = -1;
    bool is_in_progress = false;
  } epoch;

  // ---- audience.cpp ----

  [[nodiscard]] bool deals() const { return loader_.config().share == FEEDLANE_SHARE_DEAL; }
  // The description of the batch in this slot, for all consumers.
  [[nodiscard]] shm::CatalogueEntry& entry(std::uint32_t slot) const {
    return catalogue_.control<shm::CatalogueEntry>(plan_.entries)[slot];
  }
  // Delivers a round, and empties `gathered`. The last round of an epoch may have fewer parcels than others. Neither
  // this nor `announce` has an effect if memory is short.
  // Consumers that sleep are woken by links().ring(), which must come before the feeder waits for anything.
  void deliver(Parcels& gathered);
  // Sends every consumer a message: begin, end or stopped.
  void announce(const Parcel& what);

  // ---- admission.cpp ----

  Status open_consumer(const feedlane_consumer_config& config, std::int32_t& id, os::Fd& theirs, Error& error);
  // END: `nth` is past the last one. E_ARGUMENT.
  Status stats(std::int32_t nth, feedlane_consumer_stats& out);
  [[nodiscard]] const Links& links() const { return links_; }

  // ---- retrieval.cpp ----

  // Handles pending messages and returns, for calls other than poll and serve.
  void handle_pending();
  HostBell host_bell;

  // See loader::Outlet:
  [[nodiscard]] bool has_work() const;
  void prepare_wait(bool needs_slots);
  void on_event() { has_events_ = true; }
  bool work();  // true: there was something to handle
  Status make_room(Error& error);
  [[nodiscard]] os::Deadline next_deadline() const { return shortage_.next_deadline(); }
  [[nodiscard]] int fd() const { return poller_.fd(); }
  // Called when consumers keep the feeder waiting. Names them, and evicts one that has done so for too long.
  void note_shortage();
  [[nodiscard]] Shortage& shortage() { return shortage_; }

 private:
  // audience.cpp
  [[nodiscard]] std::int64_t batches_of_consumer(std::int32_t place) const;
  void deliver_to(std::size_t place, const Parcel& parcel);
  void prepare_round();
  void reserve_at(std::int32_t place, std::size_t more);
  void forget_old_states();

  // retrieval.cpp
  void collect(Link& link);
  void deliver_again(const Link& link, Parcel parcel);
  void take_back(Link& link);
  void evict(Link& link, const char* why);
  void end_link(std::uint32_t number, const char* how);
  void tell(std::int32_t kind, const Link& link, const char* what);
  bool take_from_observers();
  bool handle_events();

  // admission.cpp
  Status make_link(const feedlane_consumer_config& config, std::unique_ptr<Link>& link, Error& error);
  Status admit(std::unique_ptr<Link> link, os::Fd socket, Error& error);
  Status find_place(const feedlane_consumer_config& config, std::int32_t& id, Error& error) const;
  Status welcome(Link& link, Error& error);
  void send_missed(Link& link);
  void forget_gone();
  void handle(const os::Poller::Event& event);
  void handle_guest(std::uint64_t tag);
  void read_message(Link& link);

  loader::Loader& loader_;
  Stock& stock_;
  os::SystemFiles files_;
  shm::SharePlan plan_;
  shm::SegmentPair catalogue_;
  os::Fd readable_data_;  // data, opened for reading
  os::Fd self_;           // pidfd
  pid_t owner_ = 0;       // only this process shuts the sockets down, not a forked child
  os::Poller poller_;
  greeting::Guests guests_{poller_, asking_magic, sizeof(Asking)};
  Links links_;
  std::uint32_t last_number_ = 0;
  // Share deal: messages for the places that have no consumer.
  std::vector<Parcels> backlogs_;
  std::uint64_t round_ = 0;  // the newest
  bool has_events_ = false;
  // Consumers and empty places as of the last `stats` with number 0, or with a number that didn't follow the previous
  // one.
  std::vector<feedlane_consumer_stats> listed_;
  std::size_t next_listed_ = 0;
  std::int64_t polled_ns_ = 0;
  Shortage shortage_{loader_, links_, stock_, backlogs_};
  bool wants_returns_ = true;
};

}  // namespace feedlane::sharing
