// SPDX-License-Identifier: Apache-2.0
// The slot table's atomics: free bits, and the counts of each batch.
#include "tensors/slot_table.hpp"

#include <bit>

#include "os/quick_clock.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::tensors {

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
    // Relaxed: it only selects the bit to try, and no other thread clears bits.
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
  // 0: the slot has no batch any more. Relaxed: only monitors read it.
  if (memory_ != nullptr) memory_->slot_record(slot)->task.store(0, std::memory_order_relaxed);
  set_free(slot);
}

void SlotTable::set_free(std::uint32_t slot) {
  // Release: pairs with the acquire in take.
  free_[slot / 64].fetch_or(std::uint64_t{1} << (slot % 64), std::memory_order_release);
}

std::uint64_t SlotTable::hand_out(std::uint32_t slot) {
  count_taken(static_cast<std::uint64_t>(-1));
  return lend(slot);
}

std::uint64_t SlotTable::lend(std::uint32_t slot) {
  // Relaxed: no thread has a token of this generation yet. The caller synchronises when it passes the token on.
  const std::uint64_t generation = (states_[slot].load(std::memory_order_relaxed) >> slot_bits) + 1;
  states_[slot].store(generation << slot_bits | one_reference, std::memory_order_relaxed);
  counters_->slots_held.fetch_add(1, std::memory_order_relaxed);  // other threads may release now
  return generation << slot_bits | slot;
}

bool SlotTable::slot_of(std::uint64_t token, std::uint32_t& slot) const {
  slot = slot_number(token);
  return slot < size_;
}

bool SlotTable::is_held(std::uint64_t token, std::uint32_t& slot) const {
  if (!slot_of(token, slot)) return false;
  // Acquire: pairs with the exchange in count_down.
  const std::uint64_t state = states_[slot].load(std::memory_order_acquire);
  return state >> slot_bits == token >> slot_bits && (state & references) != 0;
}

bool SlotTable::is_sole(std::uint64_t token) const {
  std::uint32_t slot = 0;
  if (!slot_of(token, slot)) return false;
  const std::uint64_t state = states_[slot].load(std::memory_order_acquire);  // see is_held
  return state >> slot_bits == token >> slot_bits && (state & (references | uses)) == one_reference;
}

bool SlotTable::is_in_use(std::uint64_t token) const {
  std::uint32_t slot = 0;
  if (!slot_of(token, slot)) return false;
  const std::uint64_t state = states_[slot].load(std::memory_order_acquire);  // see is_held
  return state >> slot_bits == token >> slot_bits && (state & (references | uses)) != 0;
}

Status SlotTable::count_up(std::uint64_t token, std::uint64_t one, std::uint64_t mask) {
  std::uint32_t slot = 0;
  if (!slot_of(token, slot)) return FEEDLANE_E_STALE;
  std::uint64_t state = states_[slot].load(std::memory_order_relaxed);
  for (;;) {
    if (state >> slot_bits != token >> slot_bits || (state & references) == 0) return FEEDLANE_E_STALE;
    if ((state & mask) == mask) return FEEDLANE_E_LIMIT;
    // Relaxed: the caller already has a reference, which keeps the slot.
    if (states_[slot].compare_exchange_weak(state, state + one, std::memory_order_relaxed, std::memory_order_relaxed))
      return FEEDLANE_OK;
  }
}

bool SlotTable::count_down(std::uint32_t slot, std::uint64_t& state, std::uint64_t one, Left& left) {
  const std::uint64_t less = state - one;
  // Release: this thread's use of the batch happens before this exchange. Acquire: the thread that counts down last
  // sees the uses by all other threads before it calls set_free. The partner is this exchange in other threads.
  if (!states_[slot].compare_exchange_weak(state, less, std::memory_order_acq_rel, std::memory_order_relaxed))
    return false;
  left.unreferenced = (less & references) == 0;
  left.freed = (less & (references | uses)) == 0;
  if (!left.freed) return true;
  // All this is done before set_free, because the slot may be taken again at once. Relaxed counter: only a statistic.
  if (memory_ != nullptr) {
    memory_->poison_payload(slot);
    // Relaxed: loader::Stamps reads it after it has taken the slot, or earlier in settle_all, which may miss it.
    memory_->slot_record(slot)->released_ns.store(static_cast<std::uint64_t>(os::QuickClock::now_ns()),
                                                  std::memory_order_relaxed);
  }
  counters_->slots_held.fetch_sub(1, std::memory_order_relaxed);
  set_free(slot);
  return true;
}

Status SlotTable::retain(std::uint64_t token) { return count_up(token, one_reference, references); }

Status SlotTable::release(std::uint64_t token, Left& left) {
  left = {};
  std::uint32_t slot = 0;
  if (!slot_of(token, slot)) return FEEDLANE_E_STALE;
  std::uint64_t state = states_[slot].load(std::memory_order_relaxed);
  do {
    if (state >> slot_bits != token >> slot_bits || (state & references) == 0) return FEEDLANE_E_STALE;
  } while (!count_down(slot, state, one_reference, left));
  return FEEDLANE_OK;
}

Status SlotTable::begin_use(std::uint64_t token) { return count_up(token, one_use, uses); }

SlotTable::Left SlotTable::end_use(std::uint64_t token) {
  Left left;
  std::uint32_t slot = 0;
  (void)slot_of(token, slot);  // begin_use has accepted the token
  std::uint64_t state = states_[slot].load(std::memory_order_relaxed);
  while (!count_down(slot, state, one_use, left)) {
  }
  return left;
}

bool SlotTable::any_free() const {
  for (std::uint32_t w = 0; w < words_; w++)  // relaxed: only a hint, take decides
    if (free_[w].load(std::memory_order_relaxed) != 0) return true;
  return false;
}

std::uint32_t SlotTable::free() const {
  std::uint32_t count = 0;
  for (std::uint32_t w = 0; w < words_; w++)  // relaxed: only a statistic
    count += static_cast<std::uint32_t>(std::popcount(free_[w].load(std::memory_order_relaxed)));
  return count;
}

}  // namespace feedlane::tensors
