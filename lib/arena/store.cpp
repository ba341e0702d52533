// SPDX-License-Identifier: Apache-2.0
// Publishes, retires, evicts and frees entries.
#include "arena/store.hpp"

#include <algorithm>

#include "feedlane/arena.h"
#include "os/quick_clock.hpp"

namespace feedlane::arena {

Store::Store(shm::SegmentPair& control, const shm::ArenaPlan& plan, std::int32_t when_full, const Peers& peers,
             const os::SystemFiles& files)
    : memory(plan, files),
      may_evict_(when_full == FEEDLANE_FULL_EVICT),
      peers_(peers),
      index_(control, plan),
      recency_(plan.geometry.entries),
      infos_(plan.geometry.entries) {
  retired_.reserve(plan.geometry.entries);
}

std::uint32_t Store::add(const Peer& maker, std::uint32_t extent, const Key& key, bool is_pinned) {
  const std::uint32_t former = key.bytes == 0 ? Index::none : index_.find(key);
  EntryFacts facts;
  facts.segment = maker.segment;
  facts.segment_generation = memory.generation(maker.segment);
  facts.offset = memory.at(extent).offset;
  facts.bytes = memory.at(extent).bytes;
  facts.maker = maker.number();
  facts.sequence = ++sequence_;
  facts.published_ns = static_cast<std::uint64_t>(os::QuickClock::now_ns());
  const std::uint32_t entry = index_.publish(key, facts);
  infos_[entry] = {extent, 0, false};
  live_++;
  if (former != Index::none) remove(former);
  if (key.bytes != 0 && !is_pinned) recency_.add(entry, facts.published_ns);
  return entry;
}

void Store::end_delivery(std::uint32_t entry) {
  if (--infos_[entry].pending == 0) {
    index_.retire(entry);
    settle(entry);
  }
}

// Takes an entry with a key out of the index.
void Store::remove(std::uint32_t entry) {
  index_.begin_change();
  index_.retire(entry);
  index_.unlink(entry);
  index_.end_change();
  recency_.remove(entry);
  settle(entry);
}

// The entry is retired: nobody gets it any more. Frees it as soon as nobody uses it.
void Store::settle(std::uint32_t entry) {
  if (!is_leased(index_.id(entry))) return free(entry);
  retired_.push_back(entry);  // has capacity for all entries
}

void Store::free(std::uint32_t entry) {
  memory.give_back(infos_[entry].extent);
  infos_[entry] = {};
  index_.free(entry);
  live_--;
}

// Frees retired entries that nobody uses any more. One look at all leases, whatever their number.
bool Store::reclaim() {
  if (retired_.empty()) return false;
  for (const std::uint32_t entry : retired_) infos_[entry].is_unused = true;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer->is_over) continue;
    peer->for_each_lease([this](EntryId id) {
      if (id.number < infos_.size() && index_.id(id.number) == id) infos_[id.number].is_unused = false;
    });
  }
  return std::erase_if(retired_, [this](std::uint32_t entry) {
           const bool is_unused = infos_[entry].is_unused;
           if (is_unused) free(entry);
           return is_unused;
         }) != 0;
}

bool Store::is_leased(EntryId id) const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [&](const std::unique_ptr<Peer>& peer) { return !peer->is_over && peer->uses(id); });
}

std::uint64_t Store::last_use(std::uint32_t entry, std::uint64_t now) const {
  std::uint64_t used = recency_.used_ns(entry);
  for (const std::unique_ptr<Peer>& peer : peers_) used = std::max(used, std::min(peer->used_ns(entry), now));
  return used;
}

// False: a member uses it.
bool Store::evict(std::uint32_t entry) {
  index_.begin_change();
  index_.retire(entry);
  const bool is_used = is_leased(index_.id(entry));
  if (is_used) index_.restore(entry);
  else index_.unlink(entry);
  index_.end_change();
  if (is_used) return false;
  recency_.remove(entry);
  free(entry);
  evicted_++;
  return true;
}

bool Store::evict_one() {
  const auto now = static_cast<std::uint64_t>(os::QuickClock::now_ns());
  for (std::uint32_t left = 2 * recency_.size(); left > 0; left--) {
    const std::uint32_t entry = recency_.front();
    if (const std::uint64_t used = last_use(entry, now); used > recency_.used_ns(entry)) {
      recency_.renew_front(used);
      continue;
    }
    if (is_leased(index_.id(entry))) {
      recency_.renew_front(now);
      continue;
    }
    if (evict(entry)) return true;
    recency_.renew_front(now);
  }
  return false;
}

bool Store::evict_segment() {
  if (!may_evict_) return false;
  const auto extent_of = [this](std::uint32_t entry) -> const Extents::Extent& {
    return memory.at(infos_[entry].extent);
  };
  const auto entries = static_cast<std::uint32_t>(infos_.size());
  std::vector<std::uint64_t> evictable(memory.segments());
  for (std::uint32_t e = 0; e < entries; e++)
    if (recency_.contains(e)) evictable[extent_of(e).segment] += extent_of(e).bytes;
  for (;;) {
    std::uint32_t least = Memory::none;
    for (std::uint32_t s = 0; s < evictable.size(); s++)
      if (memory.is_orphan(s) && evictable[s] != 0 && evictable[s] == memory.extents().used_bytes(s) &&
          (least == Memory::none || evictable[s] < evictable[least]))
        least = s;
    if (least == Memory::none) return false;
    evictable[least] = 0;
    for (std::uint32_t e = 0; e < entries; e++)
      if (recency_.contains(e) && extent_of(e).segment == least && !evict(e)) break;
    if (!memory.is_orphan(least)) return true;
  }
}

std::uint64_t Store::granted_bytes() const {
  std::uint64_t bytes = 0;
  for (const std::unique_ptr<Peer>& peer : peers_) bytes += memory.bytes_of(peer->grants);
  return bytes;
}

Status Store::find_memory(const Peer& peer, std::uint64_t bytes, bool may_move, std::uint32_t& extent) {
  for (;;) {
    const Status s = memory.take(peer.segment, bytes, may_move, extent);
    if (s != FEEDLANE_E_LIMIT) return s;
    if (!reclaim() && !(may_move && may_evict_ && evict_one())) return s;
  }
}

}  // namespace feedlane::arena
