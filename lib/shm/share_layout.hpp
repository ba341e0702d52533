// SPDX-License-Identifier: Apache-2.0
// The structs that a feeder and its consumers share, in addition to those of shm/layout.hpp.
//
// catalogue: one per feeder, written by the feeder alone: the checked contents of each delivered slot.
// delivery:  one per consumer, written by the feeder alone: the ring of messages, and which messages were taken back.
// returns:   one per consumer, written by that consumer: what it has taken and returned. Invalid data from a faulty
//            consumer affects only its own place.
//
// Consumers map the loader's control and data, the catalogue and their delivery segment for reading only.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "shm/layout.hpp"

namespace feedlane::shm {

// Follows the header of the catalogue and of delivery: the numbers that determine the sizes of all three segments.
struct ShareGeometry {
  std::uint32_t slots;
  std::uint32_t capacity;  // cells of a delivery ring, a power of two
};
static_assert(sizeof(ShareGeometry) == 8);

// catalogue: a word of the feeder that all consumers read.
struct FeederBlock {
  // 1: the feeder waits for returned batches, so a return rings. 0: returns are collected when something else wakes the
  // feeder. The feeder stores this word before its doorbell flag and the full fence of Sleeper::prepare. A consumer
  // counts its return, issues a full fence, and then reads the word.
  alignas(writer_distance) Word32 wants_returns;
};
static_assert(sizeof(FeederBlock) == 128);

// catalogue: a delivered batch. Written before a delivery ring names its slot, and not again until every consumer has
// returned the slot.
struct CatalogueHead {
  std::int64_t epoch;
  std::int64_t batch;
  std::int32_t worker;
  std::int32_t attempt;
  std::uint64_t rows;
  std::uint64_t skipped;
  std::uint32_t has_indices;  // 1: the slot's list in control has the rows' indices, then those left out
  std::uint32_t tensor_count;
  std::uint64_t metadata_offset;  // in data, like the offsets of the tensors
  std::uint64_t metadata_bytes;   // 0: none
  std::uint64_t dispatched_ns;
  std::uint64_t begun_ns;
  std::uint64_t committed_ns;
  std::uint64_t swept_ns;
  std::uint64_t yielded_ns;  // when the feeder's loader yielded it
  std::uint64_t reserved;
};
static_assert(sizeof(CatalogueHead) == 112 && offsetof(CatalogueHead, dispatched_ns) == 64);

struct CatalogueEntry {
  CatalogueHead head;
  std::uint64_t padding[2];
  TensorRecord tensors[FEEDLANE_MAX_TENSORS];
};
static_assert(sizeof(CatalogueEntry) == 12416 && offsetof(CatalogueEntry, tensors) == 128);

// delivery: words of the feeder. A consumer stores `taken`, then reads `revoked_through`. The feeder stores
// `revoked_through`, then reads `taken`. Both issue a full fence in between. So a message is taken, or revoked, or
// both. In the last case the slot stays with the consumer until the consumer returns it.
struct DeliveryBlock {
  alignas(writer_distance) Word64 revoked_through;  // messages up to this round that were not taken are revoked
  // Set when the feeder lacks the slots that this consumer holds: the round of the newest message, and
  // ConsumerRow::returns. The shortage lasts while neither has changed.
  Word64 short_after;
  Word64 short_returns;
  Word32 is_evicted;
};
static_assert(sizeof(DeliveryBlock) == 128 && offsetof(DeliveryBlock, is_evicted) == 24);

enum class DeliveryKind : std::uint32_t { begin = 1, batch, failed, end, stopped };

// In a cell of a delivery ring. The round grows by one with each batch (share deal: with one batch for each place), and
// with each begin, end and stopped. A ring has at most one message per round, in ascending order.
struct DeliveryMessage {
  std::uint64_t round;
  std::uint32_t kind;  // DeliveryKind
  std::uint32_t slot;  // batch: its slot
  std::int64_t epoch;
  std::int64_t batch;   // batch, failed: its number; begin: this consumer's batches in the epoch, -1: unknown
  std::int32_t status;  // failed, stopped
  std::int32_t worker;  // failed
  std::int64_t sample;  // failed
  char text[text_bytes];
  std::uint64_t reserved;
};
static_assert(sizeof(DeliveryMessage) == 440 && offsetof(DeliveryMessage, text) == 48);
constexpr std::uint32_t delivery_cell_bytes = 448;

// returns: words of the consumer.
struct ConsumerRow {
  alignas(writer_distance) Word32 sleeping;  // the consumer's doorbell flag
  alignas(writer_distance) Word64 position;  // position of the delivery ring's consumer
  Word64 taken;                              // the newest round that it has taken; only grows
  Word64 skip_before;                        // it wants no batches of epochs before this one
  Word64 newest;                             // the round to which a state without a token belongs; 0: none
  alignas(writer_distance) Word64 returns;   // number of returns; any thread of the consumer adds to it
};
static_assert(sizeof(ConsumerRow) == 384 && offsetof(ConsumerRow, returns) == 256);
// Followed by one word per slot: the round in which the slot was delivered, stored when the consumer has returned it.
// returned_unread is set if the consumer took a batch that the feeder had revoked, and did not read it.
constexpr std::uint64_t returned_unread = std::uint64_t{1} << 63;

// Changes whenever the layout of a struct above, or of shm/layout.hpp, changes. Must be equal in feeder and consumer.
constexpr std::uint64_t share_layout_hash = [] {
  std::uint64_t hash = layout_hash;
  for (const std::uint64_t word :
       {sizeof(ShareGeometry), sizeof(FeederBlock), sizeof(CatalogueHead), sizeof(CatalogueEntry),
        sizeof(DeliveryBlock), sizeof(DeliveryMessage), sizeof(ConsumerRow), offsetof(CatalogueHead, yielded_ns),
        offsetof(CatalogueEntry, tensors), offsetof(DeliveryBlock, is_evicted), offsetof(DeliveryMessage, text),
        offsetof(ConsumerRow, skip_before), offsetof(ConsumerRow, newest), offsetof(ConsumerRow, returns),
        std::size_t{delivery_cell_bytes}})
    hash = (hash ^ word) * 0x100000001b3;
  return hash;
}();

// Offsets of all regions: a pure function of the geometry.
struct SharePlan {
  ShareGeometry geometry{};
  std::uint64_t feeder = 0;
  std::uint64_t entries = 0;
  std::uint64_t catalogue_bytes = 0;
  std::uint64_t block = 0;
  std::uint64_t cells = 0;
  std::uint64_t delivery_bytes = 0;
  std::uint64_t row = 0;
  std::uint64_t returned = 0;
  std::uint64_t returns_bytes = 0;
};

// E_LIMIT: a number is out of range.
Status make_share_plan(const ShareGeometry& geometry, SharePlan& out, Error& error);

}  // namespace feedlane::shm
