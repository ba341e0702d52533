// SPDX-License-Identifier: Apache-2.0
// How many workers get tasks. Tiny tasks go to so few that each of them, and the trainer, has a processor: they then find
// each other's messages without a wake-up.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "loader/pace.hpp"
#include "shm/layout.hpp"
#include "supervisor/roster.hpp"

namespace feedlane::loader {

class Engagement {
 public:
  // `cpus`: how many processors this process may use. `told`: where workers read the number.
  void use(std::uint32_t workers, int cpus, shm::Word64& told) {
    most_few_ = static_cast<std::uint32_t>(std::max(cpus - 1, 1));
    told_ = &told;
    set(workers);
  }
  // The first so many workers get tasks that are bound to none.
  [[nodiscard]] std::uint32_t workers() const { return workers_; }

  void choose(const Pace& pace, std::int64_t now_ns, const supervisor::Roster& roster) {
    const auto members = roster.members();
    const std::uint32_t few = std::min(roster.size(), most_few_);
    if (pace.is_stalled(now_ns)) rest_ = longest_rest;
    const bool are_few =
        pace.is_tiny() && rest_ == 0 &&
        std::all_of(members.begin(), members.begin() + few, [](const supervisor::Member& m) { return m.is_ready(); });
    set(are_few ? few : roster.size());
    if (rest_ != 0) rest_--;
  }
  void choose_all(const supervisor::Roster& roster) {
    if (workers_ < roster.size()) rest_ = longest_rest;
    set(roster.size());
  }

 private:
  static constexpr std::uint32_t longest_rest = 256;

  void set(std::uint32_t workers) {
    if (workers == workers_) return;
    workers_ = workers;
    told_->store(workers, std::memory_order_relaxed);  // decides only whether a worker spins before it sleeps
  }

  std::uint32_t most_few_ = 1;
  std::uint32_t workers_ = 0;
  std::uint32_t rest_ = longest_rest;  // choices for which all workers get tasks, because few were too few
  shm::Word64* told_ = nullptr;
};

}  // namespace feedlane::loader
