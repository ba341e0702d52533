// SPDX-License-Identifier: Apache-2.0
#include "arena/slot_table.hpp"

#include <bit>

#include "shm/words.hpp"

namespace feedlane::arena {

void SlotTable::reset(std::uint32_t slots, shm::LoaderCounters& counters, const shm::Segments* memory) {
  counters_ = &counters;
  memory_ = memory;
  size_ = slots;
  words_ = (slots + 63) / 64;
  states_ = std::make_unique<std::atomic<std::uint64_t>[]>(slots);
  free_ = std::make_unique<std::atomic<std::uint64_t>[]>(words_);
  for (std::uint32_t i = 0; i < slots; i++) set_free(i);
}

void SlotTable::count_taken(std::uint64_t more) { shm::add(counters_->slots_taken, more); }

bool SlotTable::take(std::uint32_t& slot) {
  for (std::uint32_t w = 0; w < words_; w++) {
    // Relaxed: only a hint which bit to try; only this thread clears bits.
    const std::uint64_t word = free_[w].load(std::memory_order_relaxed);
    if (word == 0) continue;
    const auto bit = static_cast<std::uint32_t>(std::countr_zero(word));
    // Acquire: pairs with the release in set_free.
    free_[w].fetch_and(~(std::uint64_t{1} << bit), std::memory_order_acquire);
    slot = w * 64 + bit;
    count_taken(1);
    return true;
  }
  return false;
}

void SlotTable::put_back(std::uint32_t slot) {
  count_taken(static_cast<std::uint64_t>(-1));
  set_free(slot);
}

void SlotTable::set_free(std::uint32_t slot) {
  // Release: pairs with the acquire in take.
  free_[slot / 64].fetch_or(std::uint64_t{1} << (slot % 64), std::memory_order_release);
}

std::uint64_t SlotTable::hand_out(std::uint32_t slot) {
  // Relaxed: nobody has a token of this generation yet; it travels to other threads by the caller's own means.
  const std::uint64_t generation = (states_[slot].load(std::memory_order_relaxed) >> reference_bits) + 1;
  states_[slot].store(generation << reference_bits | 1, std::memory_order_relaxed);
  counters_->slots_held.fetch_add(1, std::memory_order_relaxed);  // other threads release meanwhile
  count_taken(static_cast<std::uint64_t>(-1));
  return generation << reference_bits | slot;
}

bool SlotTable::slot_of(std::uint64_t token, std::uint32_t& slot) const {
  slot = static_cast<std::uint32_t>(token & reference_mask);
  return slot < size_;
}

bool SlotTable::is_held(std::uint64_t token, std::uint32_t& slot) const {
  if (!slot_of(token, slot)) return false;
  // Acquire: pairs with the exchange in release.
  const std::uint64_t state = states_[slot].load(std::memory_order_acquire);
  return state >> reference_bits == token >> reference_bits && (state & reference_mask) != 0;
}

bool SlotTable::holds(std::uint64_t token) const {
  std::uint32_t slot = 0;
  return is_held(token, slot);
}

Status SlotTable::retain(std::uint64_t token) {
  std::uint32_t slot = 0;
  if (!slot_of(token, slot)) return FEEDLANE_E_STALE;
  std::uint64_t state = states_[slot].load(std::memory_order_relaxed);
  for (;;) {
    if (state >> reference_bits != token >> reference_bits || (state & reference_mask) == 0) return FEEDLANE_E_STALE;
    if ((state & reference_mask) == reference_mask) return FEEDLANE_E_LIMIT;
    // Relaxed: who retains has a reference already, which keeps the slot.
    if (states_[slot].compare_exchange_weak(state, state + 1, std::memory_order_relaxed, std::memory_order_relaxed))
      return FEEDLANE_OK;
  }
}

Status SlotTable::release(std::uint64_t token, bool& freed) {
  freed = false;
  std::uint32_t slot = 0;
  if (!slot_of(token, slot)) return FEEDLANE_E_STALE;
  std::uint64_t state = states_[slot].load(std::memory_order_relaxed);
  for (;;) {
    if (state >> reference_bits != token >> reference_bits || (state & reference_mask) == 0) return FEEDLANE_E_STALE;
    // Release: this thread's use of the batch comes before; acquire: the last one sees that of all others, before put_back.
    if (states_[slot].compare_exchange_weak(state, state - 1, std::memory_order_acq_rel, std::memory_order_relaxed))
      break;
  }
  if ((state & reference_mask) != 1) return FEEDLANE_OK;
  // Before set_free: the slot may be taken again at once. Relaxed: see free().
  if (memory_ != nullptr) memory_->forbid_payload(slot);
  counters_->slots_held.fetch_sub(1, std::memory_order_relaxed);
  set_free(slot);
  freed = true;
  return FEEDLANE_OK;
}

bool SlotTable::any_free() const {
  for (std::uint32_t w = 0; w < words_; w++)  // a hint: take decides
    if (free_[w].load(std::memory_order_relaxed) != 0) return true;
  return false;
}

std::uint32_t SlotTable::free() const {
  std::uint32_t count = 0;
  for (std::uint32_t w = 0; w < words_; w++)  // a count to look at: relaxed
    count += static_cast<std::uint32_t>(std::popcount(free_[w].load(std::memory_order_relaxed)));
  return count;
}

}  // namespace feedlane::arena
