// SPDX-License-Identifier: Apache-2.0
// The structs of an arena in shared memory.
//
// control: one per arena, written by its owner alone: the index of the entries, and figures for observers. Members map it for reading.
// answers: one per member, written by the owner alone: two rings to the member.
// member:  one per member, written by that member: its ring to the owner, its leases, and when it used which entry.
// payload: one per member, written by that member alone: the contents of the entries that it has put. Other members map
//          it for reading. It has no header.
//
// Invalid data from a faulty member affects only its own entries.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "shm/layout.hpp"

namespace feedlane::shm {

constexpr std::uint32_t arena_key_bytes = 64;
constexpr std::uint32_t arena_key_words = arena_key_bytes / sizeof(std::uint64_t);
constexpr std::uint32_t arena_ring_capacity = 256;
constexpr std::uint32_t max_arena_members = 256;
constexpr std::uint32_t max_arena_entries = 1u << 20;
constexpr std::uint32_t max_arena_leases = 1u << 16;
constexpr std::uint64_t max_arena_bytes = std::uint64_t{1} << 40;

// Follows the header of control and of answers: the numbers that determine the sizes of all segments.
struct ArenaGeometry {
  std::uint64_t bytes;     // memory for entries
  std::uint32_t entries;   // at the same time
  std::uint32_t buckets;   // of the index, a power of two
  std::uint32_t members;   // at the same time, the owner included
  std::uint32_t segments;  // payload segments at the same time
  std::uint32_t leases;    // of one member at the same time
  std::uint32_t layout;    // the lower half of arena_layout_hash, for observers. make_arena_plan sets it
};
static_assert(sizeof(ArenaGeometry) == 32);

// control: words of the owner that all members read.
struct ArenaBlock {
  alignas(writer_distance) Word32 sleeping;  // the owner's doorbell flag
  // Odd while an entry is being removed. A member that finds no entry while this word is odd or has changed looks again.
  alignas(writer_distance) Word64 changes;
  // 1: the owner is short of memory, so the end of a lease rings. The owner stores this word before its doorbell flag
  // and the full fence of Sleeper::prepare. A member ends its lease, issues a full fence, and then reads the word.
  alignas(writer_distance) Word32 wants_memory;
  // For observers in other processes. The owner writes them whenever it has served, each word by itself: they need not
  // agree.
  alignas(writer_distance) Word64 member_count;  // of ArenaMemberFacts in use
  Word64 entries;                                // now
  Word64 used_bytes;                             // memory of entries
  Word64 published;
  Word64 evicted;
  Word64 ended_hits;  // of members that have ended
  Word64 ended_misses;
};
static_assert(sizeof(ArenaBlock) == 512 && offsetof(ArenaBlock, wants_memory) == 256 &&
              offsetof(ArenaBlock, member_count) == 384 && offsetof(ArenaBlock, ended_misses) == 432);

// control: what observers read of a member.
struct ArenaMemberFacts {
  Word64 number;
  Word64 pid;            // as the owner sees it; 0: it has not joined yet
  Word64 file;           // inode of its member segment, of which the owner keeps the descriptor
  Word64 state;          // 0: offered, 1: attached, 2: leaving, 3: cut off
  Word64 waiting;        // requests that wait for memory or for a key
  Word64 granted_bytes;  // memory for its next puts
  std::uint64_t reserved[2];
};
static_assert(sizeof(ArenaMemberFacts) == 64 && offsetof(ArenaMemberFacts, granted_bytes) == 40);

enum class ArenaEntryState : std::uint8_t { free = 0, live = 1, retired = 2 };

// control: an entry. The owner writes it while it is free. A member reads it at any time, and then compares the state.
struct ArenaEntry {
  alignas(64) Word64 state;  // generation << 8 | ArenaEntryState
  Word64 hash;               // of the key
  Word64 next;               // next entry of its bucket, plus 1; 0: none
  Word64 segment;            // number of its payload segment in the lower half, the segment's generation in the upper
  Word64 offset;             // in the segment
  Word64 bytes;
  Word64 maker;                 // number of the member that put it
  Word64 sequence;              // position among all entries that were published
  Word64 published_ns;          // CLOCK_MONOTONIC
  Word64 key_bytes;             // 0: an entry of a stream
  Word64 key[arena_key_words];  // the rest is zero
  std::uint64_t reserved[6];
};
static_assert(sizeof(ArenaEntry) == 192 && offsetof(ArenaEntry, key) == 80);

// An entry and its generation, in one word: generation << 20 | number of the entry. Never 0.
constexpr unsigned arena_entry_bits = 20;
static_assert(max_arena_entries == 1u << arena_entry_bits);

// answers: words of the owner for one member.
struct ArenaAnswers {
  alignas(writer_distance) Word64 request_position;  // position of the consumer of the member's requests
  Word32 is_cut_off;                                 // 1: the owner takes no more requests from this member
};
static_assert(sizeof(ArenaAnswers) == 128 && offsetof(ArenaAnswers, is_cut_off) == 8);

enum class ArenaRequestKind : std::uint32_t {
  publish = 1,    // `bytes` at `offset`: under the key, or without a key to the stream
  give_back,      // `bytes` at `offset` that were granted are not needed
  want_memory,    // at least `bytes`, better `more`
  cancel_memory,  // the request with this ticket
  want_key,       // to be told when the key has an entry
  cancel_key,     // the request with this ticket
  drop_key        // removes the entry, or gives up the right to make it
};

enum ArenaRequestFlag : std::uint32_t {
  arena_pinned = 1,  // publish: the entry is not evicted
  arena_make = 2,    // want_key: the member would make the entry
  arena_ahead = 4    // want_memory: for a later put, only if memory is plentiful
};

// In a cell of a member's ring to the owner.
struct ArenaRequest {
  std::uint32_t kind;  // ArenaRequestKind
  std::uint32_t flags;
  std::uint64_t ticket;  // names the request in its answer
  std::uint64_t offset;  // in the member's payload segment
  std::uint64_t bytes;
  std::uint64_t more;
  std::uint64_t key_bytes;
  std::uint8_t key[arena_key_bytes];
};
static_assert(sizeof(ArenaRequest) == 112 && offsetof(ArenaRequest, key) == 48);
constexpr std::uint32_t arena_request_cell = 128;

enum class ArenaAnswerKind : std::uint32_t {
  memory = 1,  // `bytes` at `offset` are granted
  no_memory,   // `bytes` are in use by others, of `offset` in all
  ready,       // the key has an entry
  make         // this member may make the entry
};

// In a cell of the owner's ring of answers to a member.
struct ArenaAnswer {
  std::uint32_t kind;  // ArenaAnswerKind
  std::int32_t status;
  std::uint64_t ticket;
  std::uint64_t offset;
  std::uint64_t bytes;
};
static_assert(sizeof(ArenaAnswer) == 32);
constexpr std::uint32_t arena_answer_cell = 64;

// In a cell of the owner's ring of deliveries to a member: an entry of a stream.
struct ArenaDelivery {
  std::uint64_t entry;
};
static_assert(sizeof(ArenaDelivery) == 8);
constexpr std::uint32_t arena_delivery_cell = 64;

// member: words of the member. Followed by one word per lease (the entry that the member uses; 0: none), one word per
// entry (when the member last used it, CLOCK_MONOTONIC), and the cells of its requests.
struct ArenaMemberRow {
  alignas(writer_distance) Word32 sleeping;         // the member's doorbell flag
  alignas(writer_distance) Word64 answer_position;  // position of the consumer of its answers
  Word64 delivery_position;                         // position of the consumer of its deliveries
  alignas(writer_distance) Word64 leases_in_use;    // every lease that was ever used has a smaller number; only grows
  alignas(writer_distance) Word64 hits;             // get found the entry
  Word64 misses;                                    // get did not
};
static_assert(sizeof(ArenaMemberRow) == 512 && offsetof(ArenaMemberRow, leases_in_use) == 256 &&
              offsetof(ArenaMemberRow, hits) == 384);

// payload: the beginning of an entry. Followed by a TensorRecord per tensor, whose offsets count from the beginning of
// the entry, and then by the tensors and the metadata.
struct ArenaContents {
  std::uint64_t magic;
  std::uint64_t tensor_count;
  std::uint64_t metadata_offset;
  std::uint64_t metadata_bytes;
  std::uint64_t reserved[4];
};
static_assert(sizeof(ArenaContents) == 64);
constexpr std::uint64_t arena_contents_magic = 0x31595254'4e454146;  // "FAENTRY1"

// Changes whenever the layout of a struct above, or of shm/layout.hpp, changes. Must be equal in owner and member.
constexpr std::uint64_t arena_layout_hash = [] {
  std::uint64_t hash = layout_hash;
  for (const std::uint64_t word : {sizeof(ArenaGeometry),
                                   sizeof(ArenaBlock),
                                   sizeof(ArenaMemberFacts),
                                   sizeof(ArenaEntry),
                                   sizeof(ArenaAnswers),
                                   sizeof(ArenaRequest),
                                   sizeof(ArenaAnswer),
                                   sizeof(ArenaDelivery),
                                   sizeof(ArenaMemberRow),
                                   sizeof(ArenaContents),
                                   offsetof(ArenaEntry, key),
                                   offsetof(ArenaEntry, sequence),
                                   offsetof(ArenaRequest, key),
                                   offsetof(ArenaMemberRow, leases_in_use),
                                   offsetof(ArenaMemberRow, misses),
                                   std::size_t{arena_ring_capacity},
                                   std::size_t{arena_entry_bits},
                                   std::size_t{arena_request_cell},
                                   std::size_t{arena_answer_cell},
                                   std::size_t{arena_delivery_cell}})
    hash = (hash ^ word) * 0x100000001b3;
  return hash;
}();

// Offsets of all regions: a pure function of the geometry.
struct ArenaPlan {
  ArenaGeometry geometry{};
  std::uint64_t block = 0;
  std::uint64_t members = 0;
  std::uint64_t buckets = 0;
  std::uint64_t entries = 0;
  std::uint64_t control_bytes = 0;
  std::uint64_t answers = 0;
  std::uint64_t answer_cells = 0;
  std::uint64_t delivery_cells = 0;
  std::uint64_t answers_bytes = 0;
  std::uint64_t row = 0;
  std::uint64_t leases = 0;
  std::uint64_t uses = 0;
  std::uint64_t request_cells = 0;
  std::uint64_t member_bytes = 0;
  std::uint64_t payload_bytes = 0;  // address space of a payload segment
  [[nodiscard]] std::uint64_t largest_entry() const { return geometry.bytes / 3; }
};

// E_ARGUMENT names the number that is out of range.
Status make_arena_plan(const ArenaGeometry& geometry, ArenaPlan& out, Error& error);

}  // namespace feedlane::shm
