// SPDX-License-Identifier: Apache-2.0
// Batches in the trainer's hands: references to them, and streams that use them. A batch keeps its slot until the last
// reference was given back and no stream uses it.
//
// Thread safety: any thread, as long as the loader exists.
#pragma once

#include <cstdint>
#include <vector>

#include "arena/slot_table.hpp"
#include "base/error.hpp"
#include "feedlane/tensor.h"
#include "loader/ledger.hpp"
#include "loader/memory.hpp"
#include "loader/wakeups.hpp"
#include "monitor/events.hpp"

namespace feedlane::loader {

class Leases {
 public:
  // All must outlive the leases.
  Leases(Memory& memory, const Ledger& ledger, Wakeups& wakeups, monitor::EventQueue& events)
      : memory_(memory), ledger_(ledger), wakeups_(wakeups), events_(events) {}

  Status retain(std::uint64_t token) { return memory_.slots.retain(token); }
  Status release(std::uint64_t token, arena::SlotTable::Left& left) {
    const Status s = memory_.slots.release(token, left);
    if (left.freed) wakeups_.wake();  // a trainer asleep in `next` may be short of slots
    return s;
  }
  // Batches held.
  [[nodiscard]] std::uint32_t held() const { return memory_.slots.held(); }
  // The tensors of a batch to which the caller has a reference. They stay as they are until its last release.
  [[nodiscard]] const std::vector<feedlane_tensor>& tensors(std::uint64_t token) const;

  // A stream uses a batch to which the caller has a reference: its slot is kept until end_use. E_STALE, E_LIMIT.
  Status begin_use(std::uint64_t token, Error& error);
  // The stream will say when it has come to the end of its use: `next` waits for that. Called before the stream is asked.
  void expect_end() { memory_.pending_releases.fetch_add(1, std::memory_order_relaxed); }
  // The use has ended. `stream`: what became of the stream, told as an event if it is an error.
  arena::SlotTable::Left end_use(std::uint64_t token, const Error& stream);

  [[nodiscard]] pinned::Pool* pool() const { return memory_.slot_memory.pool(); }
  [[nodiscard]] const arena::SlotTable& slots() const { return memory_.slots; }

 private:
  Memory& memory_;
  const Ledger& ledger_;
  Wakeups& wakeups_;
  monitor::EventQueue& events_;
};

}  // namespace feedlane::loader
