// SPDX-License-Identifier: Apache-2.0
// Looks keys up, and changes the index while members look keys up.
#include "arena/index.hpp"

#include "base/splitmix.hpp"
#include "ring/fence.hpp"
#include "ring/spin.hpp"

namespace feedlane::arena {
namespace {

constexpr std::uint64_t state_of(std::uint64_t generation, shm::ArenaEntryState state) {
  return generation << 8 | static_cast<std::uint64_t>(state);
}

// How often a member looks again while the index is changing. A change takes the owner a few microseconds.
constexpr int most_looks = 10'000;
// How many entries it passes in all these looks, beside each entry once: more only if an invalid index leads in a circle.
constexpr std::uint64_t most_steps = 100'000;

}  // namespace

std::uint64_t Key::hash() const {
  std::uint64_t hash = bytes;
  for (const std::uint64_t word : words) hash = scatter(hash ^ word);
  return hash;
}

// ---- members ----

// Relaxed: a member compares the entry's state again once it has leased it. Other results are only a miss, which the
// word `changes` confirms.
bool IndexView::has_key(const shm::ArenaEntry& entry, const Key& key, std::uint64_t hash) const {
  if (entry.hash.load(std::memory_order_relaxed) != hash) return false;
  if (entry.key_bytes.load(std::memory_order_relaxed) != key.bytes) return false;
  for (std::size_t i = 0; i < key.words.size(); i++)
    if (entry.key[i].load(std::memory_order_relaxed) != key.words[i]) return false;
  return true;
}

IndexView::Found IndexView::find(const Key& key, std::uint64_t hash, EntryId& out) const {
  std::uint64_t steps = 0;
  for (int look = 0; look < most_looks && steps <= entry_count_ + most_steps; look++) {
    // Acquire: pairs with the release in Index::end_change.
    const std::uint64_t changes = block_->changes.load(std::memory_order_acquire);
    // Acquire: pairs with the release in Index::publish.
    std::uint64_t next = buckets_[hash & bucket_mask_].load(std::memory_order_acquire);
    // An entry that is removed and used again may lead into another bucket, so the steps are counted.
    for (std::uint32_t i = 0; next != 0 && next <= entry_count_ && i <= entry_count_; i++, steps++) {
      const auto number = static_cast<std::uint32_t>(next - 1);
      const shm::ArenaEntry& entry = entries_[number];
      const std::uint64_t state = entry.state.load(std::memory_order_acquire);  // pairs with Index::publish
      if ((state & 0xff) == static_cast<std::uint64_t>(shm::ArenaEntryState::live) && has_key(entry, key, hash)) {
        out = {number, state >> 8};
        return Found::yes;
      }
      next = entry.next.load(std::memory_order_acquire);  // pairs with Index::publish and unlink
    }
    // Orders the loads above before the next one. Pairs with the fence in Index::begin_change.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (changes % 2 == 0 && block_->changes.load(std::memory_order_relaxed) == changes) return Found::no;
    ring::relax();
  }
  return Found::unsure;
}

EntryFacts IndexView::facts(std::uint32_t number) const {
  const shm::ArenaEntry& e = entries_[number];
  // Relaxed: the acquire load in is_live precedes them.
  const std::uint64_t segment = e.segment.load(std::memory_order_relaxed);
  EntryFacts facts;
  facts.segment = static_cast<std::uint32_t>(segment);
  facts.segment_generation = static_cast<std::uint32_t>(segment >> 32);
  facts.offset = e.offset.load(std::memory_order_relaxed);
  facts.bytes = e.bytes.load(std::memory_order_relaxed);
  facts.maker = static_cast<std::uint32_t>(e.maker.load(std::memory_order_relaxed));
  facts.sequence = e.sequence.load(std::memory_order_relaxed);
  facts.published_ns = e.published_ns.load(std::memory_order_relaxed);
  return facts;
}

// ---- the owner ----

Index::Index(shm::SegmentPair& control, const shm::ArenaPlan& plan)
    : block_(control.control<shm::ArenaBlock>(plan.block)),
      buckets_(control.control<shm::Word64>(plan.buckets)),
      entries_(control.control<shm::ArenaEntry>(plan.entries)),
      bucket_mask_(plan.geometry.buckets - 1) {
  free_.reserve(plan.geometry.entries);
  for (std::uint32_t i = plan.geometry.entries; i-- > 0;) free_.push_back(i);
}

std::uint32_t Index::publish(const Key& key, const EntryFacts& facts) {
  const std::uint32_t number = free_.back();
  free_.pop_back();
  shm::ArenaEntry& e = entries_[number];
  const std::uint64_t hash = key.hash();
  // Relaxed: the release store of the state follows.
  e.hash.store(hash, std::memory_order_relaxed);
  e.segment.store(std::uint64_t{facts.segment_generation} << 32 | facts.segment, std::memory_order_relaxed);
  e.offset.store(facts.offset, std::memory_order_relaxed);
  e.bytes.store(facts.bytes, std::memory_order_relaxed);
  e.maker.store(facts.maker, std::memory_order_relaxed);
  e.sequence.store(facts.sequence, std::memory_order_relaxed);
  e.published_ns.store(facts.published_ns, std::memory_order_relaxed);
  e.key_bytes.store(key.bytes, std::memory_order_relaxed);
  for (std::size_t i = 0; i < key.words.size(); i++) e.key[i].store(key.words[i], std::memory_order_relaxed);
  shm::Word64& bucket = buckets_[hash & bucket_mask_];
  if (key.bytes != 0) e.next.store(bucket.load(std::memory_order_relaxed), std::memory_order_relaxed);
  const std::uint64_t generation = (e.state.load(std::memory_order_relaxed) >> 8) + 1;
  // Release: pairs with the acquire in IndexView::is_live and find. The maker's writes to the payload happen before it,
  // because its request was read with acquire.
  e.state.store(state_of(generation, shm::ArenaEntryState::live), std::memory_order_release);
  if (key.bytes != 0) bucket.store(number + 1, std::memory_order_release);  // pairs with IndexView::find
  return number;
}

std::uint32_t Index::find(const Key& key) const {
  const std::uint64_t hash = key.hash();
  for (std::uint64_t next = buckets_[hash & bucket_mask_].load(std::memory_order_relaxed); next != 0;
       next = entries_[next - 1].next.load(std::memory_order_relaxed)) {
    const auto number = static_cast<std::uint32_t>(next - 1);
    if (entries_[number].hash.load(std::memory_order_relaxed) == hash && this->key(number) == key) return number;
  }
  return none;
}

void Index::begin_change() {
  block_->changes.store(block_->changes.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  // Orders the store before the stores that follow. Pairs with the acquire fence in IndexView::find.
  std::atomic_thread_fence(std::memory_order_release);
}

void Index::end_change() {
  // Release: pairs with the acquire in IndexView::find.
  block_->changes.store(block_->changes.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void Index::retire(std::uint32_t entry) {
  shm::ArenaEntry& e = entries_[entry];
  const std::uint64_t generation = e.state.load(std::memory_order_relaxed) >> 8;
  // Relaxed: the fence orders it before the look at the leases. Pairs with the fence in Member::lease: at least one side
  // sees the other's store.
  e.state.store(state_of(generation, shm::ArenaEntryState::retired), std::memory_order_relaxed);
  ring::doorbell_fence();
}

void Index::restore(std::uint32_t entry) {
  shm::ArenaEntry& e = entries_[entry];
  const std::uint64_t generation = e.state.load(std::memory_order_relaxed) >> 8;
  e.state.store(state_of(generation, shm::ArenaEntryState::live), std::memory_order_release);  // see publish
}

void Index::unlink(std::uint32_t entry) {
  shm::Word64* link = &buckets_[entries_[entry].hash.load(std::memory_order_relaxed) & bucket_mask_];
  // The bucket contains the entry. Relaxed: the owner alone writes these words.
  while (link->load(std::memory_order_relaxed) != entry + 1)
    link = &entries_[link->load(std::memory_order_relaxed) - 1].next;
  // Release: a member that follows the link sees the entry to which it leads. Pairs with IndexView::find.
  link->store(entries_[entry].next.load(std::memory_order_relaxed), std::memory_order_release);
}

void Index::free(std::uint32_t entry) {
  shm::ArenaEntry& e = entries_[entry];
  const std::uint64_t generation = e.state.load(std::memory_order_relaxed) >> 8;
  e.state.store(state_of(generation, shm::ArenaEntryState::free), std::memory_order_relaxed);  // not in use
  free_.push_back(entry);
}

EntryId Index::id(std::uint32_t entry) const {
  return {entry, entries_[entry].state.load(std::memory_order_relaxed) >> 8};
}

Key Index::key(std::uint32_t entry) const {
  const shm::ArenaEntry& e = entries_[entry];
  Key key;
  key.bytes = e.key_bytes.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < key.words.size(); i++) key.words[i] = e.key[i].load(std::memory_order_relaxed);
  return key;
}

}  // namespace feedlane::arena
