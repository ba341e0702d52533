// SPDX-License-Identifier: Apache-2.0
// The consumers of a feeder: how they come and go, what is delivered to them, what they return, and what follows when they lag.
//
//   audience.cpp   rounds -> delivery rings
//   retrieval.cpp  what comes back: returns, consumers that end, lag, evictions
//   admission.cpp  how consumers come, what they say over their sockets
//
// A round is what is delivered at once: with share every, one batch to every consumer; with share deal, one batch to each
// place. Each message has the number of its round. See docs/sharing.md.
//
// Used by the feeder's thread only.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "feedlane/share.h"
#include "loader/loader.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/limits.hpp"
#include "os/poller.hpp"
#include "os/socket.hpp"
#include "sharing/greeting.hpp"
#include "sharing/links.hpp"
#include "sharing/stock.hpp"

namespace feedlane::sharing {

class Audience {
 public:
  // Both must outlive the audience.
  Audience(loader::Loader& loader, Stock& stock, const os::SystemFiles& files)
      : loader_(loader), stock_(stock), files_(files) {}
  Audience(const Audience&) = delete;
  Audience& operator=(const Audience&) = delete;
  // Consumers learn of the end, even if a forked child has the descriptors.
  ~Audience();
  // What all consumers share, and the socket at config.share_path.
  Status open(Error& error);

  struct Epoch {
    std::int64_t number = -1;
    bool is_in_progress = false;
  } epoch;

  // ---- audience.cpp ----

  [[nodiscard]] bool deals() const { return loader_.config().share == FEEDLANE_SHARE_DEAL; }
  // Where the batch in this slot is described for all consumers.
  [[nodiscard]] shm::CatalogueEntry& entry(std::uint32_t slot) const {
    return catalogue_.control<shm::CatalogueEntry>(plan_.entries)[slot];
  }
  // As many parcels as a round has; at the end of an epoch fewer. Nothing is left in `gathered`. Where memory is short nothing
  // has happened, here and in `announce`.
  void deliver(Parcels& gathered);
  // What every consumer is told: begin, end, stopped.
  void announce(const Parcel& what);

  // ---- admission.cpp ----

  Status open_consumer(const feedlane_consumer_config& config, std::int32_t& id, os::Fd& theirs, Error& error);
  // END: there are fewer. E_ARGUMENT.
  Status stats(std::int32_t nth, feedlane_consumer_stats& out);
  [[nodiscard]] const Links& links() const { return links_; }

  // ---- retrieval.cpp; the first six as Outlet says ----

  [[nodiscard]] bool has_work() const;
  void prepare_wait(bool needs_slots);
  void on_event() { has_events_ = true; }
  void work();
  Status make_room(Error& error);
  [[nodiscard]] os::Deadline next_deadline() const;
  [[nodiscard]] int fd() const { return poller_.fd(); }
  // False: a consumer's ring is full, and it has to read.
  bool make_ring_room();
  void forgive(std::int64_t ns);
  // A batch came: what kept the feeder waiting has ended.
  void end_shortage() { shortage_.since_ns = 0; }
  // Whether there is anybody to deliver to. E_PEER_DEAD.
  Status check_consumers(Error& error) const;

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
  [[nodiscard]] bool is_in_the_way(Link& link) const;
  void evict_overdue(std::int64_t now_ns);
  bool take_from_observers();
  [[nodiscard]] std::optional<std::size_t> find_missing_consumer() const;
  void handle_events();
  Status look_for_holder(Error& error);
  Status blame_holders(Error& error) const;
  void note_stall(std::int64_t now_ns);
  void tell_lag();
  void end_shorts();

  // admission.cpp
  Status admit(const feedlane_consumer_config& config, os::Fd socket, std::int32_t& id, Error& error);
  Status find_place(const feedlane_consumer_config& config, std::int32_t& id, Error& error) const;
  Status welcome(Link& link, Error& error);
  void send_missed(Link& link);
  void handle(const os::Poller::Event& event);
  void accept_guest();
  void listen_again();
  void read_request(std::uint32_t guest);
  void read_message(Link& link);
  void answer(const Link& link, const Request& request) const;

  enum Kind : std::uint64_t { kind_socket, kind_process, kind_bell, kind_guest };
  static std::uint64_t make_tag(std::uint32_t number, Kind kind) { return std::uint64_t{number} << 2 | kind; }
  static constexpr std::uint64_t listener_tag = UINT64_MAX;
  // Connections that have not asked for a place; the oldest of too many is turned away.
  static constexpr std::uint32_t max_guests = 16;

  loader::Loader& loader_;
  Stock& stock_;
  os::SystemFiles files_;
  shm::SharePlan plan_;
  shm::SegmentPair catalogue_;
  os::Fd readable_data_;  // data, opened for reading
  os::Fd self_;           // pidfd
  pid_t owner_ = 0;       // only this process shuts the sockets down, not a forked child
  os::Poller poller_;
  os::Fd listener_;
  os::SocketFile file_;
  std::int64_t listen_again_ns_ = 0;  // there were too few descriptors for a guest; 0: it listens
  std::array<os::Fd, max_guests> guests_;
  std::uint32_t next_guest_ = 0;
  Links links_;
  std::uint32_t last_number_ = 0;
  // Share deal: what a place that has no consumer will get.
  std::vector<Parcels> backlogs_;
  std::uint64_t round_ = 0;  // the newest
  bool has_events_ = false;
  std::int64_t polled_ns_ = 0;
  // Consumers keep the feeder waiting.
  struct Shortage {
    std::int64_t since_ns = 0;  // 0: they don't
    bool is_found = false;      // since the last wait
    bool is_lag_told = false;
    bool is_short_told = false;  // consumers were told to release batches
  } shortage_;
  bool wants_returns_ = true;
};

}  // namespace feedlane::sharing
