// SPDX-License-Identifier: Apache-2.0
// The lender of a loader that yields batches to its own process.
#pragma once

#include "lending/lender.hpp"
#include "loader/ledger.hpp"
#include "loader/memory.hpp"
#include "loader/wakeups.hpp"

namespace feedlane::loader {

class OwnLender final : public lending::Lender {
 public:
  // All must outlive the lender.
  OwnLender(Memory& memory, const Ledger& ledger, Wakeups& wakeups)
      : memory_(memory), ledger_(ledger), wakeups_(wakeups) {}

  [[nodiscard]] tensors::SlotTable& slots() override { return memory_.slots; }
  [[nodiscard]] pinned::Pool* pool() const override { return memory_.slot_memory.pool(); }
  [[nodiscard]] const std::vector<feedlane_tensor>& tensors(std::uint32_t slot) const override {
    return ledger_.at(slot).contents.made.tensors;
  }
  [[nodiscard]] bool is_read_only(std::uint32_t) const override { return false; }
  // A trainer asleep in `next` may be short of slots.
  void on_freed(std::uint32_t) override { wakeups_.wake(); }
  // Relaxed: the stream is asked after this call, so it reports later.
  void expect_end() override { memory_.pending_releases.fetch_add(1, std::memory_order_relaxed); }
  void on_end() override {
    // Release: pairs with the acquire in Memory::any_release_pending.
    memory_.pending_releases.fetch_sub(1, std::memory_order_release);
    wakeups_.wake_inline_too();
  }

 private:
  Memory& memory_;
  const Ledger& ledger_;
  Wakeups& wakeups_;
};

}  // namespace feedlane::loader
