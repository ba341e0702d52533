// SPDX-License-Identifier: Apache-2.0
// Reads the records of a loader that runs.
#pragma once

#include <cstdint>
#include <vector>

#include "loaders.hpp"
#include "trace_timeline.hpp"

namespace observe {

// Reads a loader's trace again and again, each record once. The loader's `info().trace` is not 0.
class Collector {
 public:
  // Keeps the newest `max_records` (at least 1) of the trace; older ones count as lost.
  Collector(Found loader, std::uint64_t max_records);

  // Reads records written since the last call, at most as many as the trace keeps or `most`. How many there were, those included
  // that are lost.
  std::uint64_t look(std::uint64_t most);
  // Reads on until `seconds` have passed (0: without end), the loader or its process has ended, or SIGINT or SIGTERM arrives.
  void follow(double seconds);
  // The last look: also the batches that are in slots. Call it once, at the end.
  Recording finish();

 private:
  void keep(const feedlane_batch_record& record);
  void add_slots(const std::vector<feedlane_batch_record>& slots);
  void add_tasks_in_hand();
  bool is_gone() const;

  Found loader_;
  std::uint64_t max_records_;
  Recording recording_;
  std::uint64_t next_ = 0;  // sequence of the record after the newest one that was read; 0: none was
  std::vector<feedlane_batch_record> buffer_;
  std::size_t oldest_ = 0;     // where the recording's oldest record is, once there are max_records_
  std::size_t from_ring_ = 0;  // how many of the recording's records the trace gave; the rest is from slots
};

}  // namespace observe
