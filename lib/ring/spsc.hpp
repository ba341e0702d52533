// SPDX-License-Identifier: Apache-2.0
// A single-producer, single-consumer ring. The two sides may be in different processes.
//
// All cells have the same size, a multiple of 64 bytes. Their number is a power of two. A cell begins with its sequence
// number; the rest is the message. Position p (64 bits, wraps around) is in cell p mod capacity. The producer fills the
// message, then stores sequence = p + 1. That store is the commit. The consumer polls only this word, which shares a
// cache line with the beginning of the message, so a small message costs the transfer of one line. The consumer never
// writes to cells. It publishes its position in another word, which the producer reads only when the ring seems full.
//
// One commit publishes its cells from the last to the first. The consumer polls the first cell, so it sees all cells of
// the commit or none, and doesn't fetch the other lines while the producer writes them. A producer that is killed at
// any instruction has committed a prefix of its messages, and each commit completely or not at all. Its successor
// starts `capacity` positions later, where no sequence number that is left in a cell can match.
//
// Memory ordering: the producer's writes before commit() happen before the consumer's peek() that returns the cell. The
// consumer's reads before release() happen before the producer's reserve() that returns the cell again.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/prefetch.hpp"

namespace feedlane::ring {

using Sequence = std::atomic<std::uint64_t>;
static_assert(Sequence::is_always_lock_free && sizeof(Sequence) == 8);

// Address, size and number of the cells. Each side has its own copy.
struct Cells {
  std::byte* memory = nullptr;
  std::uint32_t cell_bytes = 0;
  std::uint32_t capacity = 0;

  static constexpr bool valid(std::uint32_t cell_bytes, std::uint32_t capacity) {
    return cell_bytes >= 64 && cell_bytes % 64 == 0 && std::has_single_bit(capacity);
  }
  [[nodiscard]] std::byte* cell(std::uint64_t position) const {
    return memory + static_cast<std::size_t>(position & (capacity - 1)) * cell_bytes;
  }
  [[nodiscard]] static Sequence& sequence_of(std::byte* cell) { return *reinterpret_cast<Sequence*>(cell); }
  [[nodiscard]] static const Sequence& sequence_of(const std::byte* cell) {
    return *reinterpret_cast<const Sequence*>(cell);
  }
  [[nodiscard]] Sequence& sequence(std::uint64_t position) const { return sequence_of(cell(position)); }
  [[nodiscard]] std::byte* message(std::uint64_t position) const { return cell(position) + sizeof(Sequence); }
  [[nodiscard]] std::uint32_t message_bytes() const {
    return cell_bytes - static_cast<std::uint32_t>(sizeof(Sequence));
  }
  // Cells from `position` to the memory's end. No reserve or peek goes beyond it, so messages lie cell_bytes apart.
  [[nodiscard]] std::uint32_t until_end(std::uint64_t position) const {
    return capacity - static_cast<std::uint32_t>(position & (capacity - 1));
  }

  // Gives every cell the sequence number of the lap before `start`. Zeroed memory needs no format for start 0. Call
  // only before the producer starts.
  void format(std::uint64_t start) const {
    for (std::uint64_t i = 0; i < capacity; i++)
      sequence(start + i).store(start + i + 1 - capacity, std::memory_order_relaxed);  // the producer's start orders it
  }
};

class Producer {
 public:
  Producer() = default;
  // `consumer_position`: the word that the consumer publishes; nullptr if the caller itself counts free cells.
  Producer(Cells cells, std::uint64_t start, const Sequence* consumer_position)
      : cells_(cells), position_(start), consumer_seen_(start), consumer_position_(consumer_position) {}

  // How many cells, up to `want`, can be filled now: message(0), message(1) ... Fewer at the memory's end.
  std::uint32_t reserve(std::uint32_t want) {
    want = std::min(want, cells_.until_end(position_));
    if (consumer_position_ == nullptr) return want;
    if (free_cells() < want) {
      // Pairs with the release store in Consumer::publish: the consumer's reads of the cells happen before our writes.
      consumer_seen_ = consumer_position_->load(std::memory_order_acquire);
      if (position_ - consumer_seen_ > cells_.capacity) {  // no consumer has such a position: the memory is damaged
        broken_ = true;
        consumer_seen_ = position_ - cells_.capacity;
      }
    }
    return std::min(want, free_cells());
  }
  // Whether reserve(count) would return `count` without reading the consumer's position.
  [[nodiscard]] bool has_room(std::uint32_t count) const {
    return count <= free_cells() && count <= cells_.until_end(position_);
  }
  [[nodiscard]] std::byte* message(std::uint32_t index) const { return cells_.message(position_ + index); }

  // Publishes the first `count` reserved cells, all at once.
  void commit(std::uint32_t count) {
    // The cells of one reserve() are contiguous.
    std::byte* cell = cells_.cell(position_) + std::size_t{count} * cells_.cell_bytes;
    for (std::uint64_t p = position_ + count; p != position_; p--) {
      cell -= cells_.cell_bytes;
      // Pairs with the acquire load in Consumer::peek.
      Cells::sequence_of(cell).store(p, std::memory_order_release);
    }
    position_ += count;
    prefetch_ahead(count);
  }

  [[nodiscard]] std::uint64_t position() const { return position_; }
  [[nodiscard]] bool broken() const { return broken_; }
  [[nodiscard]] const Cells& cells() const { return cells_; }

 private:
  // Fetches the lines of later cells from the consumer's cache while this thread does other work.
  void prefetch_ahead(std::uint32_t count) const {
    if (free_cells() < ahead + count) return;
    const std::byte* cell = cells_.cell(position_ + ahead);
    const std::uint32_t in_a_row = std::min(count, cells_.until_end(position_ + ahead));  // not beyond the end
    for (std::uint32_t i = 0; i < in_a_row; i++, cell += cells_.cell_bytes) prefetch_for_write(cell);
  }
  static constexpr std::uint32_t ahead = 32;

  [[nodiscard]] std::uint32_t free_cells() const {
    return cells_.capacity - static_cast<std::uint32_t>(position_ - consumer_seen_);
  }

  Cells cells_;
  std::uint64_t position_ = 0;
  std::uint64_t consumer_seen_ = 0;  // the consumer's position, or an earlier one
  const Sequence* consumer_position_ = nullptr;
  bool broken_ = false;
};

class Consumer {
 public:
  Consumer() = default;
  // `published`: the word in which the producer reads the position; nullptr if the producer never reads it.
  Consumer(Cells cells, std::uint64_t start, Sequence* published)
      : cells_(cells), position_(start), published_(published) {
    publish();
  }

  // How many committed cells, up to `want`, can be read now: message(0), message(1) ... Fewer at the memory's end.
  [[nodiscard]] std::uint32_t peek(std::uint32_t want) const {
    want = std::min(want, cells_.until_end(position_));
    const std::byte* cell = cells_.cell(position_);
    std::uint32_t count = 0;
    // Pairs with the release store in Producer::commit: the message was written before it.
    while (count < want && Cells::sequence_of(cell).load(std::memory_order_acquire) == position_ + count + 1) {
      count++;
      cell += cells_.cell_bytes;
    }
    return count;
  }
  [[nodiscard]] const std::byte* message(std::uint32_t index) const { return cells_.message(position_ + index); }
  // Whether the cell `index` positions after the next cell is committed. May go beyond the end of the memory.
  [[nodiscard]] bool is_committed(std::uint32_t index) const {
    // Pairs with the release store in Producer::commit, as in peek.
    return cells_.sequence(position_ + index).load(std::memory_order_acquire) == position_ + index + 1;
  }

  // Prefetches the next cell.
  void prefetch() const { __builtin_prefetch(cells_.cell(position_)); }

  // For a producer that commits one cell at a time. Its committed cells form a prefix, and every other cell has a
  // sequence number of an earlier lap, or zero. True if the next `count` cells violate this: the memory is damaged.
  [[nodiscard]] bool is_torn(std::uint32_t count) const {
    bool is_later_committed = false;
    for (std::uint64_t p = position_ + std::min(count, cells_.capacity); p-- != position_;) {
      // Acquire: pairs with the release store in Producer::commit. A thread that sees a cell committed sees all earlier
      // cells committed.
      const std::uint64_t sequence = cells_.sequence(p).load(std::memory_order_acquire);
      const std::uint64_t behind = p + 1 - sequence;  // a multiple of the capacity, unless damaged
      if (behind == 0) is_later_committed = true;
      else if (is_later_committed || (sequence != 0 && (behind > UINT64_MAX / 2 || behind % cells_.capacity != 0)))
        return true;
    }
    return false;
  }

  // Continues at the same position in other cells. They must be all zero, which is no committed cell's sequence number.
  // Call only while there is no producer.
  void move_to(Cells cells) { cells_ = cells; }
  // See Cells::format. Call only while there is no producer.
  void format() const { cells_.format(position_); }

  // Releases the first `count` peeked cells to the producer.
  void release(std::uint32_t count) {
    position_ += count;
    publish();
  }

  [[nodiscard]] std::uint64_t position() const { return position_; }
  // Where the next producer starts after this producer has ended and all its committed cells are released.
  [[nodiscard]] std::uint64_t next_generation_start() const { return position_ + cells_.capacity; }

 private:
  void publish() {
    // Pairs with the acquire load in Producer::reserve.
    if (published_ != nullptr) published_->store(position_, std::memory_order_release);
  }

  Cells cells_;
  std::uint64_t position_ = 0;
  Sequence* published_ = nullptr;
};

}  // namespace feedlane::ring
