// SPDX-License-Identifier: Apache-2.0
// The entries of an arena and their memory: which entries are live, which are retired and still in use, and which are
// evicted first. Private to the owner.
//
// Used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "arena/index.hpp"
#include "arena/memory.hpp"
#include "arena/peer.hpp"
#include "arena/recency.hpp"
#include "base/error.hpp"
#include "os/limits.hpp"
#include "shm/arena_layout.hpp"
#include "shm/segment.hpp"

namespace feedlane::arena {

using Peers = std::vector<std::unique_ptr<Peer>>;

class Store {
 public:
  // `control` and `peers`, whose leases the store looks at, must outlive it.
  Store(shm::SegmentPair& control, const shm::ArenaPlan& plan, std::int32_t when_full, const Peers& peers,
        const os::SystemFiles& files);

  Memory memory;
  [[nodiscard]] const Index& index() const { return index_; }
  [[nodiscard]] std::uint64_t live() const { return live_; }
  [[nodiscard]] std::uint64_t published() const { return sequence_; }
  [[nodiscard]] std::uint64_t evicted() const { return evicted_; }

  // Whether `add` may be called. Evicts an entry if need be and allowed.
  bool has_room_for_entry() { return !index_.is_full() || reclaim() || (may_evict_ && evict_one()); }
  // Makes this extent, which `maker` has filled, an entry. Replaces an entry with the same key. Without a key it is live
  // until `end_delivery` was called `deliveries` times.
  std::uint32_t add(const Peer& maker, std::uint32_t extent, const Key& key, bool is_pinned);
  void expect_delivery(std::uint32_t entry) { infos_[entry].pending++; }
  void end_delivery(std::uint32_t entry);
  // Takes an entry with a key out of the index.
  void remove(std::uint32_t entry);
  // Takes memory of the member's segment. Frees what it may and, if `may_move`, evicts. Statuses: see Memory::take.
  Status find_memory(const Peer& peer, std::uint64_t bytes, bool may_move, std::uint32_t& extent);
  [[nodiscard]] bool may_evict() const { return may_evict_ && recency_.size() != 0; }
  // Evicts all entries of a member that has ended, so that a new member may have its segment: of the one with the fewest
  // bytes. False: each has an entry that must stay.
  bool evict_segment();
  // Memory that members have for their next puts.
  [[nodiscard]] std::uint64_t granted_bytes() const;
  // Frees retired entries that nobody uses any more. True: there was one.
  bool reclaim();

 private:
  // What only the owner knows of an entry.
  struct Info {
    std::uint32_t extent = Memory::none;
    std::uint32_t pending = 0;  // deliveries that were not taken
    bool is_unused = false;     // while `reclaim` looks
  };
  void settle(std::uint32_t entry);
  void free(std::uint32_t entry);
  bool evict(std::uint32_t entry);
  bool evict_one();
  [[nodiscard]] bool is_leased(EntryId id) const;
  [[nodiscard]] std::uint64_t last_use(std::uint32_t entry, std::uint64_t now) const;

  bool may_evict_;
  const Peers& peers_;
  Index index_;
  Recency recency_;
  std::vector<Info> infos_;
  std::vector<std::uint32_t> retired_;  // entries that are still in use
  std::uint64_t sequence_ = 0;
  std::uint64_t live_ = 0;
  std::uint64_t evicted_ = 0;
};

}  // namespace feedlane::arena
