// SPDX-License-Identifier: Apache-2.0
// When consumers keep the feeder waiting, because they hold every slot or a ring is full: who does, since when, and who is to be
// told, evicted or asked for batches. See "Lag" in docs/architecture.md.
//
// Used by the feeder's thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "loader/loader.hpp"
#include "os/clock.hpp"
#include "sharing/links.hpp"
#include "sharing/stock.hpp"

namespace feedlane::sharing {

class Shortage {
 public:
  // All must outlive this. `backlogs`: share deal, what each place has that has no consumer.
  Shortage(loader::Loader& loader, const Links& links, const Stock& stock, const std::vector<Parcels>& backlogs)
      : loader_(loader), links_(links), stock_(stock), backlogs_(backlogs) {}

  // ---- how long ----

  // Consumers keep the feeder waiting. Names them after a second.
  void note(std::int64_t now_ns);
  // The feeder is about to wait. Consumers are the reason only if `note` was called since the last wait, or a ring is full.
  void begin_wait(bool has_room);
  // A batch came: what kept the feeder waiting has ended.
  void end() { since_ns_ = 0; }
  // The feeder's host was away for this long: nobody kept the feeder waiting meanwhile.
  void forgive(std::int64_t ns);
  // When there is somebody to name or to evict.
  [[nodiscard]] os::Deadline next_deadline() const;

  // ---- what follows ----

  struct Overdue {
    Link* link;
    const char* why;
  };
  // A consumer to evict: its words are invalid, or it has kept the feeder waiting for too long. One at a time: with what it had
  // the others may no longer be in the way.
  [[nodiscard]] std::optional<Overdue> find_overdue(std::int64_t now_ns) const;
  // The round up to which observers have to give up what they have not taken, to free a slot that nobody else holds. Even then
  // the slot may not be free: an observer may have taken it meanwhile. None: there is no such slot.
  [[nodiscard]] std::optional<std::uint64_t> find_observed() const;
  // Whether a consumer that has slots may return one. Those that have taken all there is are told to. PEER_DEAD: a place without
  // a consumer has the slots. HUNG: only consumers that get no batches any more.
  Status look_for_holder(Error& error);
  // Share deal: PEER_DEAD where more messages are kept for a place without a consumer than may be.
  Status check_backlogs(Error& error) const;
  // If a slot is free: consumers that were told to return batches may wait for more again.
  void end_shorts();

 private:
  [[nodiscard]] bool is_in_the_way(Link& link) const;
  [[nodiscard]] std::int64_t patience_with(const Link& link) const;
  [[nodiscard]] std::optional<std::size_t> find_missing_consumer() const;
  void tell_lag();
  Status blame_holders(Error& error) const;

  loader::Loader& loader_;
  const Links& links_;
  const Stock& stock_;
  const std::vector<Parcels>& backlogs_;
  std::int64_t since_ns_ = 0;   // 0: consumers don't keep the feeder waiting
  bool is_noted_ = false;       // since the last wait
  bool is_lag_told_ = false;    // that they do
  bool is_short_told_ = false;  // consumers were told to return batches
};

}  // namespace feedlane::sharing
