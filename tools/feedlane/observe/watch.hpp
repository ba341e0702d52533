// SPDX-License-Identifier: Apache-2.0
// The loaders that `feedlane top` shows: which there are, and their numbers over one interval.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "sample.hpp"

namespace observe {

struct Watched {
  Found found;
  Sample before{};  // at the beginning of the interval
  Sample after{};   // at its end
  feedlane_diagnosis diagnosis{};
  bool is_unknown = false;  // the process could not be read for the moment, which was said

  // Over the interval; 0 to 1, and negative if there is nothing to divide by.
  [[nodiscard]] double exposed() const;
  [[nodiscard]] double readiness() const;
  [[nodiscard]] double busy() const;
  [[nodiscard]] double worker_busy(std::size_t worker) const;
};

class Watch {
 public:
  // Of `pid`, or of all processes of this user if it is 0.
  explicit Watch(std::int64_t pid) : pid_(pid) {}

  // Looks for loaders that have begun or ended; says on standard error which have ended. Looks for others than those of the
  // known processes at most once a second, because that reads the descriptors of all.
  void find();
  // Ends the interval and begins the next one.
  void measure();

  [[nodiscard]] const std::vector<Watched>& all() const { return all_; }
  // The last reason why the process could not be read; code 0: it could.
  [[nodiscard]] const feedlane::Error& error() const { return error_; }
  // Whether a loader was found at some time.
  [[nodiscard]] bool has_seen_one() const { return has_seen_one_; }
  // Whether some process could not be read, so that there may be a loader that is not found.
  [[nodiscard]] bool has_told() const { return !told_.empty(); }

 private:
  void drop_ended();
  void drop_those_of(std::int64_t pid, std::vector<Watched>& of_process, std::vector<Watched>& kept);
  void add(std::vector<Found> found);

  std::int64_t pid_;
  std::vector<Watched> all_;
  feedlane::Error error_;
  std::uint64_t next_search_ns_ = 0;
  std::set<std::int64_t> told_;  // processes that could not be read, each said once
  bool has_seen_one_ = false;
};

// The interval as `--json` has it.
Json watched_json(const Watched& w, bool with_workers);

}  // namespace observe
