// SPDX-License-Identifier: Apache-2.0
// Finds the arenas of this user's processes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sample.hpp"

namespace observe {

// An arena at two times.
struct Arena {
  std::int64_t pid = 0;  // of its owner
  int nth = 0;           // among the owner's arenas
  std::string program;
  std::optional<FileId> file;
  feedlane::ArenaInfo before{};
  feedlane::ArenaInfo after{};
};

// The arenas of `pid`, or of all processes if it is 0. Children of an owner inherit its descriptors, and are left out.
// `unreadable` is added to.
std::vector<Arena> find_arenas(std::int64_t pid, std::vector<Unreadable>& unreadable);
// Reads it again. False: it has ended meanwhile; `after` stays.
bool read_again(Arena& arena);

// The arenas that a command watches, interval after interval.
class ArenaWatch {
 public:
  // Of `pid`, or of all processes of this user if it is 0.
  explicit ArenaWatch(std::int64_t pid) : pid_(pid) {}
  // Looks for arenas that have begun or ended, at most once a second.
  void find();
  // Ends the interval and begins the next one.
  void measure();
  [[nodiscard]] const std::vector<Arena>& all() const { return all_; }
  // The length of the last interval.
  [[nodiscard]] double seconds() const { return seconds_; }

 private:
  std::int64_t pid_;
  std::vector<Arena> all_;
  std::uint64_t next_search_ns_ = 0;
  std::uint64_t measured_ns_ = 0;
  double seconds_ = 0;
};

// A second, between the two times.
struct ArenaRates {
  double gets = 0;
  double hit_share = -1;  // of the gets; negative: there were none
  double published = 0;
  double evicted = 0;
};
ArenaRates rates(const Arena& arena, double seconds);
Json to_json(const Arena& arena, double seconds);

}  // namespace observe
