// SPDX-License-Identifier: Apache-2.0
// The slot table: which slots are free, and who holds the others.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "shm/layout.hpp"
#include "shm/segment.hpp"

namespace feedlane::arena {

// Private to the trainer: no worker can write it. The numbers of taken and held slots are counted in control.
//
// A slot is free; or taken by a task; or held: its batch was handed out under a token of slot and generation, with a count
// of references and a count of streams that still use it. Without references only its streams keep the slot.
//
// Thread safety: take, hand_out and put_back for the loader's one thread; the others for any thread, in any order.
//
// Memory ordering: what a thread did with a batch before its release or end_use happens before the take that returns the
// slot, and before the last release returns.
class SlotTable {
 public:
  // `counters` and `memory` must outlive the table. The payload of a freed slot is poisoned in `memory`.
  void reset(std::uint32_t slots, shm::LoaderCounters& counters, const shm::Segments* memory = nullptr);

  bool take(std::uint32_t& slot);
  // Frees a taken slot.
  void put_back(std::uint32_t slot);
  // A taken slot becomes a batch with one reference. Returns its token, never 0.
  std::uint64_t hand_out(std::uint32_t slot);
  // The same on the side of a consumer, whose feeder has taken the slot.
  std::uint64_t lend(std::uint32_t slot);

  // State of a batch after a release or end_use.
  struct Left {
    bool unreferenced = false;  // this was the last reference
    bool freed = false;         // and no stream uses it: its slot is free
  };

  // E_STALE for a token that was released or never handed out; E_LIMIT for 2^16 references.
  Status retain(std::uint64_t token);
  Status release(std::uint64_t token, Left& left);
  // A stream uses the batch, in addition to the references, until end_use. E_STALE; E_LIMIT for 2^8 of them.
  Status begin_use(std::uint64_t token);
  Left end_use(std::uint64_t token);

  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] std::uint32_t held() const {
    return static_cast<std::uint32_t>(counters_->slots_held.load(std::memory_order_relaxed));  // only a statistic
  }
  [[nodiscard]] std::uint32_t free() const;
  [[nodiscard]] bool any_free() const;
  // For the loader's one thread: the slot stays free until this thread takes it. What other threads did with the batch
  // happens before `true`.
  [[nodiscard]] bool is_free(std::uint32_t slot) const {
    // Acquire: pairs with the release in set_free.
    return (free_[slot / 64].load(std::memory_order_acquire) >> (slot % 64) & 1) != 0;
  }
  // The slot of a token that this table has handed out.
  static std::uint32_t slot_number(std::uint64_t token) { return static_cast<std::uint32_t>(token & slot_mask); }
  // The slot of a token, released ones included; false if the token is not of this table.
  bool slot_of(std::uint64_t token, std::uint32_t& slot) const;
  // Whether the batch of this token still has references. For the loader's one thread.
  bool is_held(std::uint64_t token, std::uint32_t& slot) const;
  // Whether the slot's newest batch still has references or streams that use it.
  [[nodiscard]] bool is_lent(std::uint32_t slot) const {
    // Acquire: pairs with the exchange in count_down.
    return (states_[slot].load(std::memory_order_acquire) & (references | uses)) != 0;
  }
  // Whether the batch still keeps its slot. What threads and streams did with the batch happens before `false`.
  [[nodiscard]] bool is_in_use(std::uint64_t token) const;

 private:
  void set_free(std::uint32_t slot);
  void count_taken(std::uint64_t more);
  // Adds 1 to the count whose lowest bit is `one`. E_STALE, E_LIMIT.
  Status count_up(std::uint64_t token, std::uint64_t one, std::uint64_t mask);
  // Subtracts `one` if the counts of `slot` are still `state`. False: they have changed; `state` has the new ones.
  bool count_down(std::uint32_t slot, std::uint64_t& state, std::uint64_t one, Left& left);

  static constexpr unsigned slot_bits = 24;  // of a token: the rest is the generation
  static constexpr std::uint64_t slot_mask = (std::uint64_t{1} << slot_bits) - 1;
  // Of a state, beside the generation.
  static constexpr std::uint64_t one_reference = 1, references = 0xffff;
  static constexpr std::uint64_t one_use = 0x10000, uses = 0xff0000;

  std::uint32_t size_ = 0;
  std::uint32_t words_ = 0;
  // generation << 24 | uses << 16 | references
  std::unique_ptr<std::atomic<std::uint64_t>[]> states_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> free_;  // one bit a slot
  shm::LoaderCounters* counters_ = nullptr;
  const shm::Segments* memory_ = nullptr;
};

}  // namespace feedlane::arena
