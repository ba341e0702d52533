// SPDX-License-Identifier: Apache-2.0
// Consumers that keep the feeder waiting, because they hold every slot or a ring is full: which ones, since when, and
// which to name, to evict, or to ask for batches. See "Lag" in docs/architecture.md.
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
  // All arguments must outlive this. `backlogs`: with share deal, the messages for each place that has no consumer.
  Shortage(loader::Loader& loader, const Links& links, const Stock& stock, const std::vector<Parcels>& backlogs)
      : loader_(loader), links_(links), stock_(stock), backlogs_(backlogs) {}

  // ---- how long ----

  // Called when consumers keep the feeder waiting. Names them after a second.
  void note(std::int64_t now_ns);
  // The feeder is about to wait. Consumers are the reason only if a ring is full or `note` was called since the last
  // wait.
  void begin_wait(bool has_room);
  // A batch came, so the feeder's wait has ended.
  void end() { since_ns_ = 0; }
  // The feeder's host was away for this long. The time does not count against consumers.
  void forgive(std::int64_t ns);
  // When a consumer has to be named or evicted.
  [[nodiscard]] os::Deadline next_deadline() const;

  // ---- what follows ----

  struct Overdue {
    Link* link;
    const char* why;
  };
  // A consumer to evict, because it has written invalid data or has kept the feeder waiting for too long. One at a
  // time, because its slots may be enough to continue.
  [[nodiscard]] std::optional<Overdue> find_overdue(std::int64_t now_ns) const;
  // The round up to which batches must be revoked from observers to free a slot that no other consumer holds. The slot
  // may stay taken if an observer takes the batch first. None: there is no such slot.
  [[nodiscard]] std::optional<std::uint64_t> find_observed() const;
  // OK: a consumer may return a slot. If no batch is left to take, the ones that hold the most are asked to. PEER_DEAD:
  // a place without a consumer has the slots. HUNG: consumers that get no more batches hold all slots.
  Status look_for_holder(Error& error);
  // Share deal: PEER_DEAD if too many messages are kept for a place without a consumer.
  Status check_backlogs(Error& error) const;
  // If a slot is free, consumers that were asked to return batches may wait for batches again.
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
  bool is_noted_ = false;       // `note` was called since the last wait
  bool is_lag_told_ = false;    // consumers were named
  bool is_short_told_ = false;  // consumers were asked to return batches
};

}  // namespace feedlane::sharing
