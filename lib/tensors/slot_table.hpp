// SPDX-License-Identifier: Apache-2.0
// The slot table: which slots are free, and what keeps the others.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "shm/layout.hpp"
#include "shm/segment.hpp"

namespace feedlane::tensors {

// Lies in private memory, so no other process can write it. The numbers of taken and held slots are counted in control.
//
// A slot is free, taken by a task, or held. The batch of a held slot was handed out under a token, which consists of
// slot and generation. Two counts keep the slot: references to the batch, and streams that still use it.
//
// Thread safety: only the loader's thread may call take, put_back, hand_out and lend. Other functions, unless marked,
// are for any thread, in any order.
//
// Memory ordering: a thread's use of a batch before its release or end_use happens before the take that returns the
// slot, and before the last release returns.
class SlotTable {
 public:
  // `counters` and `memory` must outlive the table, which poisons the payloads of freed slots in `memory`.
  void reset(std::uint32_t slots, shm::LoaderCounters& counters, const shm::Segments* memory = nullptr);

  bool take(std::uint32_t& slot);
  // Frees a taken slot.
  void put_back(std::uint32_t slot);
  // Turns a taken slot into a batch with one reference. Returns its token, which is never 0.
  std::uint64_t hand_out(std::uint32_t slot);
  // Like hand_out, in a consumer: its feeder has taken the slot.
  std::uint64_t lend(std::uint32_t slot);

  // State of a batch after a release or end_use.
  struct Left {
    bool unreferenced = false;  // this was the last reference
    bool freed = false;         // nor does a stream use it, so its slot is free
  };

  // E_STALE for a token that was released or never handed out; E_LIMIT beyond 2^16 - 1 references.
  Status retain(std::uint64_t token);
  Status release(std::uint64_t token, Left& left);
  // A stream uses the batch until end_use, in addition to the references. E_STALE; E_LIMIT beyond 2^8 - 1 uses.
  Status begin_use(std::uint64_t token);
  Left end_use(std::uint64_t token);

  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] std::uint32_t held() const {
    return static_cast<std::uint32_t>(counters_->slots_held.load(std::memory_order_relaxed));  // only a statistic
  }
  [[nodiscard]] std::uint32_t free() const;
  [[nodiscard]] bool any_free() const;
  // Only for the loader's thread: a free slot stays free until this thread takes it. Other threads' use of its last
  // batch happens before a return of true.
  [[nodiscard]] bool is_free(std::uint32_t slot) const {
    // Acquire: pairs with the release in set_free.
    return (free_[slot / 64].load(std::memory_order_acquire) >> (slot % 64) & 1) != 0;
  }
  // The slot of a token that this table has handed out.
  static std::uint32_t slot_number(std::uint64_t token) { return static_cast<std::uint32_t>(token & slot_mask); }
  // The slot of a token, which may be released already. False if this table has no such slot.
  bool slot_of(std::uint64_t token, std::uint32_t& slot) const;
  // Whether the batch of this token still has references. Only for the loader's thread.
  bool is_held(std::uint64_t token, std::uint32_t& slot) const;
  // Whether the slot's newest batch still has references or streams that use it.
  [[nodiscard]] bool is_lent(std::uint32_t slot) const {
    // Acquire: pairs with the exchange in count_down.
    return (states_[slot].load(std::memory_order_acquire) & (references | uses)) != 0;
  }
  // Whether the batch has exactly one reference, and no stream uses it.
  [[nodiscard]] bool is_sole(std::uint64_t token) const;
  // Whether references or streams still keep the batch's slot. Their use of the batch happens before a return of false.
  [[nodiscard]] bool is_in_use(std::uint64_t token) const;

 private:
  void set_free(std::uint32_t slot);
  void count_taken(std::uint64_t more);
  // Adds 1 to the count whose lowest bit is `one`. E_STALE, E_LIMIT.
  Status count_up(std::uint64_t token, std::uint64_t one, std::uint64_t mask);
  // Subtracts `one` if the counts of `slot` are still `state`. False: they have changed; `state` has the new ones.
  bool count_down(std::uint32_t slot, std::uint64_t& state, std::uint64_t one, Left& left);

  static constexpr unsigned slot_bits = 24;  // of a token; the other bits are the generation
  static constexpr std::uint64_t slot_mask = (std::uint64_t{1} << slot_bits) - 1;
  // The counts in a state, below the generation.
  static constexpr std::uint64_t one_reference = 1, references = 0xffff;
  static constexpr std::uint64_t one_use = 0x10000, uses = 0xff0000;

  std::uint32_t size_ = 0;
  std::uint32_t words_ = 0;
  // generation << 24 | uses << 16 | references
  std::unique_ptr<std::atomic<std::uint64_t>[]> states_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> free_;  // one bit per slot
  shm::LoaderCounters* counters_ = nullptr;
  const shm::Segments* memory_ = nullptr;
};

}  // namespace feedlane::tensors
