// SPDX-License-Identifier: Apache-2.0
// The owner's figures: for the caller, and in control for observers.
#include <algorithm>
#include <vector>

#include "arena/owner.hpp"
#include "os/quick_clock.hpp"

namespace feedlane::arena {

void Owner::fill_in(feedlane_arena_stats& stats) {
  (void)store_->reclaim();
  stats.entries = store_->live();
  const std::uint64_t granted = store_->granted_bytes();
  stats.used_bytes = store_->memory.used_bytes() - granted;
  stats.free_bytes = plan_.geometry.bytes - std::min(plan_.geometry.bytes, stats.used_bytes);
  stats.members = peers_.size();
  stats.published = store_->published();
  stats.evicted = store_->evicted();
  stats.waiting = waits_.size() + wants_.waiting();
  stats.hits = ended_hits_;
  stats.misses = ended_misses_;
  std::vector<std::uint64_t> leased;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    stats.hits += peer->row().hits.load(std::memory_order_relaxed);
    stats.misses += peer->row().misses.load(std::memory_order_relaxed);
    if (!peer->is_over) peer->for_each_lease([&](EntryId id) { leased.push_back(id.word()); });
  }
  std::sort(leased.begin(), leased.end());
  stats.leased = static_cast<std::uint64_t>(std::unique(leased.begin(), leased.end()) - leased.begin());
}

// Relaxed: only statistics. See ArenaBlock. Counting who waits takes longest, so it is left out if it was done just now.
void Owner::write_figures(bool is_about_to_sleep) {
  const std::int64_t now = os::QuickClock::now_ns();
  const bool counts_waiting = is_about_to_sleep || now - counted_waiting_ns_ >= 1'000'000;
  if (counts_waiting) counted_waiting_ns_ = now;
  figures_are_old_ = !counts_waiting;
  const auto write = [](shm::Word64& word, std::uint64_t value) { word.store(value, std::memory_order_relaxed); };
  auto* facts = control_.control<shm::ArenaMemberFacts>(plan_.members);
  for (const std::unique_ptr<Peer>& peer : peers_) {
    write(facts->number, peer->number());
    write(facts->pid, static_cast<std::uint64_t>(peer->pid));
    write(facts->file, peer->file());
    write(facts->state, static_cast<std::uint64_t>(peer->state));
    if (counts_waiting) write(facts->waiting, wants_.waiting_of(peer->number()) + waits_.count(peer->number()));
    write(facts->granted_bytes, store_->memory.bytes_of(peer->grants));
    facts++;
  }
  auto& block = *control_.control<shm::ArenaBlock>(plan_.block);
  write(block.member_count, peers_.size());
  write(block.entries, store_->live());
  write(block.used_bytes, store_->memory.used_bytes() - store_->granted_bytes());
  write(block.published, store_->published());
  write(block.evicted, store_->evicted());
  write(block.ended_hits, ended_hits_);
  write(block.ended_misses, ended_misses_);
}

}  // namespace feedlane::arena
