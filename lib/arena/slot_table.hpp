// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "shm/layout.hpp"
#include "shm/segment.hpp"

namespace feedlane::arena {

// Which slots are free, and who holds the others. Private to the trainer: no worker can touch it. How many are taken and
// held is counted in control.
//
// A slot is free; or taken, for a task; or held: its batch is in the trainer's hands under a token of slot and
// generation, with a count of references. take, hand_out and put_back are for the loader's one thread; retain and release
// for any thread, in any order.
//
// Memory ordering: what a thread did with a batch before its release happens before the take that returns the slot.
class SlotTable {
 public:
  // `counters` must outlive the table, and `memory`, whose payload of a released slot nobody may touch any more.
  void reset(std::uint32_t slots, shm::LoaderCounters& counters, const shm::Segments* memory = nullptr);

  bool take(std::uint32_t& slot);
  // A taken slot that is not needed after all.
  void put_back(std::uint32_t slot);
  // A taken slot becomes a batch with one reference. Never 0.
  std::uint64_t hand_out(std::uint32_t slot);

  // E_STALE for a token that was released or never handed out; E_LIMIT for 2^24 references.
  Status retain(std::uint64_t token);
  // `freed` is set when this was the last reference.
  Status release(std::uint64_t token, bool& freed);

  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] std::uint32_t held() const {
    return static_cast<std::uint32_t>(counters_->slots_held.load(std::memory_order_relaxed));  // a count to look at
  }
  [[nodiscard]] std::uint32_t free() const;
  [[nodiscard]] bool any_free() const;
  // Which slot a token of any age speaks of; false if it is none of this table.
  bool slot_of(std::uint64_t token, std::uint32_t& slot) const;
  // Whether somebody holds the batch of this token still. For the loader's one thread.
  bool is_held(std::uint64_t token, std::uint32_t& slot) const;
  // The same; what threads did with the batch before its last release happens before a `false`.
  [[nodiscard]] bool holds(std::uint64_t token) const;

 private:
  void set_free(std::uint32_t slot);
  void count_taken(std::uint64_t more);

  static constexpr unsigned reference_bits = 24;  // also the bits of a slot number in a token
  static constexpr std::uint64_t reference_mask = (std::uint64_t{1} << reference_bits) - 1;

  std::uint32_t size_ = 0;
  std::uint32_t words_ = 0;
  // generation << 24 | references
  std::unique_ptr<std::atomic<std::uint64_t>[]> states_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> free_;  // one bit a slot
  shm::LoaderCounters* counters_ = nullptr;
  const shm::Segments* memory_ = nullptr;
};

}  // namespace feedlane::arena
