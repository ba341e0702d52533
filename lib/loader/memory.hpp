// SPDX-License-Identifier: Apache-2.0
// A loader's memory: its segments, which of their slots are free or held, and what the slots' pages are worth.
#pragma once

#include <atomic>
#include <cstdint>

#include "arena/slot_table.hpp"
#include "base/error.hpp"
#include "loader/config.hpp"
#include "loader/prefetch.hpp"
#include "loader/slot_memory.hpp"
#include "loader/stamps.hpp"
#include "monitor/events.hpp"
#include "monitor/snapshot.hpp"
#include "os/limits.hpp"
#include "shm/segment.hpp"

namespace feedlane::loader {

class Memory {
 public:
  // Plans and creates the segments. `state_bytes`: the largest state of a shard to resume from.
  Status create(const Config& config, std::uint64_t state_bytes, const os::SystemFiles& files,
                monitor::EventQueue& events, Error& error);

  shm::Segments segments;
  arena::SlotTable slots;
  SlotMemory slot_memory;
  Stamps stamps;
  monitor::EpochFigures figures;
  Prefetch prefetch;
  // Releases by streams that have not come to an end: each may free a slot.
  std::atomic<std::uint32_t> pending_releases{0};

  // Takes a free slot for a batch.
  bool take_slot(std::uint32_t& slot) {
    if (!slots.take(slot)) return false;
    stamps.settle(slot);
    return true;
  }
  [[nodiscard]] shm::LoaderCounters& counters() const { return *segments.counters(); }
  [[nodiscard]] bool any_release_pending() const {
    // Acquire: pairs with the release in OwnLender::on_end, whose slot is free then.
    return pending_releases.load(std::memory_order_acquire) != 0;
  }
  // Restores free slots that are in doubt: until then they may hold memory that the next worker lacks. Those in use follow
  // when they are free, or with their next task, which returns what fails here.
  void restore_free_slots();

 private:
  Status plan(const Config& config, std::uint64_t state_bytes, monitor::EventQueue& events, shm::Geometry& geometry,
              Error& error) const;
  void write_facts(const Config& config);
  void start_prefetch(const Config& config, std::uint32_t slot_count);
  Status create_segments(const Config& config, const shm::Geometry& geometry, const os::SystemFiles& files,
                         Error& error);
};

}  // namespace feedlane::loader
