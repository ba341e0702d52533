// SPDX-License-Identifier: Apache-2.0
// Chooses the worker that gets a task. The cost of a choice does not depend on the number of workers: `note` keeps them
// sorted by their tasks.
#pragma once

#include <cstdint>

#include "loader/engagement.hpp"
#include "loader/ledger.hpp"
#include "loader/prefetch.hpp"
#include "loader/vacancies.hpp"
#include "supervisor/roster.hpp"

namespace feedlane::loader {

class WorkerChoice {
 public:
  // Both must outlive it.
  WorkerChoice(const Prefetch& prefetch, const supervisor::Roster& roster) : prefetch_(prefetch), roster_(roster) {}
  // `cpus`: how many processors this process may use. `told`: see Engagement.
  void use(int cpus, shm::Word64& told);

  // The number of the worker's tasks has changed. A worker whose state has changed is noted by note_all, before the
  // trainer sleeps at the latest; until then it may get no tasks.
  void note(std::uint32_t worker);
  void note_all();

  [[nodiscard]] Engagement& engagement() { return engagement_; }
  [[nodiscard]] const Engagement& engagement() const { return engagement_; }
  // Whether tasks may go only to workers that are awake.
  void hold(bool holds) { holds_ = holds; }

  // The worker with the fewest unfinished tasks that has room; equals take turns. Entry::anyone: none.
  [[nodiscard]] std::uint32_t choose(const Entry& entry);
  // Whether a ready worker has no task while others have some that they have not begun.
  [[nodiscard]] bool is_uneven() const;

 private:
  // Looks at so many workers for one that is awake. The task is held anyway if they all sleep.
  static constexpr std::uint32_t looks_for_awake = 32;

  [[nodiscard]] bool is_candidate(const Entry& entry, std::uint32_t worker) const;
  [[nodiscard]] std::uint32_t choose_of_all(const Entry& entry) const;

  const Prefetch& prefetch_;
  const supervisor::Roster& roster_;
  Engagement engagement_;
  Vacancies ready_;
  Vacancies starting_;  // has workers that are not ready
  bool holds_ = false;
  std::uint32_t last_ = 0;  // the worker that was chosen last
};

}  // namespace feedlane::loader
