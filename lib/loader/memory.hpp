// SPDX-License-Identifier: Apache-2.0
// A loader's memory: its segments, which slots are free or held, and which slots' pages must be restored.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/error.hpp"
#include "loader/config.hpp"
#include "loader/slot_memory.hpp"
#include "monitor/events.hpp"
#include "os/limits.hpp"
#include "shm/segment.hpp"
#include "tensors/slot_table.hpp"

namespace feedlane::loader {

class Memory {
 public:
  // Plans and creates the segments. `state_bytes`: the size of the largest shard state to resume from.
  Status create(const Config& config, std::uint64_t state_bytes, const os::SystemFiles& files,
                monitor::EventQueue& events, Error& error);

  shm::Segments segments;
  tensors::SlotTable slots;
  SlotMemory slot_memory;
  // Releases that still wait for a stream. Each may free a slot.
  std::atomic<std::uint32_t> pending_releases{0};

  [[nodiscard]] shm::LoaderCounters& counters() const { return *segments.counters(); }
  [[nodiscard]] bool any_release_pending() const {
    // Acquire: pairs with the release in OwnLender::on_end, so that the freed slot is visible.
    return pending_releases.load(std::memory_order_acquire) != 0;
  }
  // Restores free slots that are in doubt, because they may occupy memory that the next worker needs. A slot in use is
  // restored once it is free, or before its next task. An error here is ignored; the slot's next task returns it.
  void restore_free_slots();

 private:
  Status plan(const Config& config, std::uint64_t state_bytes, monitor::EventQueue& events, shm::Geometry& geometry,
              Error& error) const;
  void write_facts(const Config& config);
  Status create_segments(const Config& config, const shm::Geometry& geometry, const os::SystemFiles& files,
                         Error& error);
};

}  // namespace feedlane::loader
