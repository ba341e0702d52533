// SPDX-License-Identifier: Apache-2.0
// The index: entries in control, and the keys under which they are found. The owner writes it; members look keys up
// without a lock and without a system call.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "shm/arena_layout.hpp"
#include "shm/segment.hpp"

namespace feedlane::arena {

// A key as the index stores it: zero after its last byte.
struct Key {
  std::array<std::uint64_t, shm::arena_key_words> words{};
  std::uint64_t bytes = 0;

  Key() = default;
  // `size` is at most arena_key_bytes.
  Key(const void* data, std::uint64_t size) : bytes(size) { std::memcpy(words.data(), data, size); }
  [[nodiscard]] std::uint64_t hash() const;
  bool operator==(const Key&) const = default;
};

// An entry, and which of the entries that had this number it is. Fits into a word, see shm::arena_entry_bits.
struct EntryId {
  std::uint32_t number = 0;
  std::uint64_t generation = 0;

  [[nodiscard]] std::uint64_t word() const { return generation << shm::arena_entry_bits | number; }
  static EntryId of(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word & ((1u << shm::arena_entry_bits) - 1)), word >> shm::arena_entry_bits};
  }
  bool operator==(const EntryId&) const = default;
};

// What control says about an entry.
struct EntryFacts {
  std::uint32_t segment = 0;
  std::uint32_t segment_generation = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint32_t maker = 0;
  std::uint64_t sequence = 0;
  std::uint64_t published_ns = 0;
};

// Control as a member sees it. Thread safety: any thread.
class IndexView {
 public:
  IndexView() = default;
  IndexView(const shm::SegmentPair& control, const shm::ArenaPlan& plan)
      : block_(control.control<shm::ArenaBlock>(plan.block)),
        buckets_(control.control<shm::Word64>(plan.buckets)),
        entries_(control.control<shm::ArenaEntry>(plan.entries)),
        bucket_mask_(plan.geometry.buckets - 1),
        entry_count_(plan.geometry.entries) {}

  enum class Found { yes, no, unsure };
  // unsure: the owner is changing the index, or was stopped while it did. The caller asks the owner.
  Found find(const Key& key, std::uint64_t hash, EntryId& out) const;
  [[nodiscard]] bool is_live(EntryId id) const {
    // Acquire: pairs with the release in Index::publish. A member that leases the entry issues a full fence between its
    // lease and this load; see Index::retire.
    return entries_[id.number].state.load(std::memory_order_acquire) ==
           (id.generation << 8 | static_cast<std::uint64_t>(shm::ArenaEntryState::live));
  }
  // Facts of an entry that this member has leased, and so cannot change.
  [[nodiscard]] EntryFacts facts(std::uint32_t number) const;
  [[nodiscard]] const shm::ArenaBlock& block() const { return *block_; }
  [[nodiscard]] std::uint32_t entry_count() const { return entry_count_; }

 private:
  [[nodiscard]] bool has_key(const shm::ArenaEntry& entry, const Key& key, std::uint64_t hash) const;

  const shm::ArenaBlock* block_ = nullptr;
  const shm::Word64* buckets_ = nullptr;
  const shm::ArenaEntry* entries_ = nullptr;
  std::uint64_t bucket_mask_ = 0;
  std::uint32_t entry_count_ = 0;
};

// The owner's side. One thread at a time.
class Index {
 public:
  // Reserves all memory that the index needs.
  Index(shm::SegmentPair& control, const shm::ArenaPlan& plan);

  static constexpr std::uint32_t none = UINT32_MAX;
  [[nodiscard]] bool is_full() const { return free_.empty(); }
  // Makes a free entry live. With a key, members find it from now on; the caller has removed an earlier entry of the
  // key.
  std::uint32_t publish(const Key& key, const EntryFacts& facts);
  [[nodiscard]] std::uint32_t find(const Key& key) const;
  // No member gets the entry from here on: a member whose lease is not seen by a later look at the leases finds the
  // entry retired.
  void retire(std::uint32_t entry);
  // Makes a retired entry live again, for its present users and for later lookups.
  void restore(std::uint32_t entry);
  // Takes the entry's key out of the index. Called after `retire`.
  void unlink(std::uint32_t entry);
  // The entry is in use no more.
  void free(std::uint32_t entry);
  // Members that find no entry look again until `end_change`.
  void begin_change();
  void end_change();

  [[nodiscard]] EntryId id(std::uint32_t entry) const;

 private:
  [[nodiscard]] Key key(std::uint32_t entry) const;

  shm::ArenaBlock* block_;
  shm::Word64* buckets_;
  shm::ArenaEntry* entries_;
  std::uint64_t bucket_mask_;
  std::vector<std::uint32_t> free_;
};

}  // namespace feedlane::arena
