// SPDX-License-Identifier: Apache-2.0
// Deadlines of workers: to attach, to open the data set, to make progress with tasks, and to end after Leaving.
// Deadlines computes them; Crew acts on missed ones.
//
// All deadlines except the one after Leaving are compared with the time of the last `look`, which is when the workers'
// messages were read. So a worker that is stopped after it, together with the trainer, is not late.
#pragma once

#include <cstdint>
#include <span>

#include "os/clock.hpp"
#include "supervisor/member.hpp"
#include "supervisor/settings.hpp"

namespace feedlane::supervisor {

// How long a process may take to end after SIGKILL before its batch continues in another slot, and before `stop` gives
// up.
constexpr std::int64_t patience_with_death_ns = 1'000'000'000;
constexpr std::int64_t longest_death_ns = 10'000'000'000;

class Deadlines {
 public:
  explicit Deadlines(const Settings& settings) : settings_(settings) {}

  // Reads the clock. If the trainer was away for long, the deadlines of its workers are restarted.
  void look(std::span<Member> members);
  // The time of the last look.
  [[nodiscard]] std::int64_t now_ns() const { return last_look_ns_; }
  // When the next deadline passes.
  [[nodiscard]] os::Deadline next(std::span<const Member> members) const;
  // When a trainer that waits for a deadline must look again, to notice whether it was stopped in between.
  [[nodiscard]] os::Deadline next_look(std::span<const Member> members) const;

  enum class Missed { nothing, restart, start, end, task, death };
  // Which deadline of this worker has passed.
  [[nodiscard]] Missed missed_by(const Member& m) const;

  // By when a worker has to attach, and then to open its data set. FEEDLANE_FOREVER: no limit.
  [[nodiscard]] std::int64_t attach_deadline_ns(bool has_one) const;
  [[nodiscard]] std::int64_t open_deadline_ns() const;

 private:
  [[nodiscard]] bool has_task_deadline(const Member& m) const;
  [[nodiscard]] std::int64_t task_deadline_ns(const Member& m) const;
  [[nodiscard]] std::int64_t look_every_ns() const;
  void excuse(Member& m, std::int64_t absence_ns) const;

  const Settings& settings_;
  std::int64_t last_look_ns_ = 0;
};

}  // namespace feedlane::supervisor
