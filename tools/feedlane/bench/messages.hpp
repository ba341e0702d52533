// SPDX-License-Identifier: Apache-2.0
// Messages through Feedlane's ring, there and back and one way, compared with the bare line; tools/bench adds other
// queues.
#pragma once

#include <string>
#include <vector>

#include "measure.hpp"

namespace bench {

// How many messages are committed (sent) and taken at a time.
struct Pair {
  const char* name;
  std::uint32_t sent, received;
};
constexpr Pair pairs[] = {{"single", 1, 1}, {"sent by one", 1, 64}, {"batched", 32, 64}};

// Round trips of a round, and of a round by a channel that sleeps in the kernel, which takes a few hundred times as
// long.
std::uint64_t usual_trips(const Options& options);
std::uint64_t slow_trips(const Options& options);
// Messages of a round one way.
std::uint64_t usual_messages(const Options& options);

// There and back: the line, the ring in place, the ring by send and receive.
enum Trip { floor_trip, in_place_trip, calls_trip, ring_trips };
std::vector<Entry> round_trips(const Options& options);
// One way: the ring in place, then by send and receive.
std::vector<Entry> ways_of(const Pair& pair, std::uint64_t count);

const Entry& entry_of(const std::vector<Entry>& entries, const std::string& name);

// Rows for the report, and the table: each round trip with the one way of the same name, then the other ways. Ratios
// over the line.
Report tell_messages(const std::vector<Entry>& trips, const std::vector<Entry>& ways, const Options& options);

}  // namespace bench
