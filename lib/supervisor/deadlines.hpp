// SPDX-License-Identifier: Apache-2.0
// What must have happened by when: workers attach, open their data sets, make progress with their tasks, and end when they say
// so. This says when that is; the crew does what follows.
//
// Deadlines are judged by the time of the last `look`, which is when the workers' words were read: a worker that is stopped
// after it, together with the trainer, is not late.
#pragma once

#include <cstdint>
#include <span>

#include "os/clock.hpp"
#include "supervisor/member.hpp"
#include "supervisor/settings.hpp"

namespace feedlane::supervisor {

// How long a process may take to end after SIGKILL before what it had continues elsewhere, and before `stop` gives up waiting.
constexpr std::int64_t patience_with_death_ns = 1'000'000'000;
constexpr std::int64_t longest_death_ns = 10'000'000'000;

class Deadlines {
 public:
  explicit Deadlines(const Settings& settings) : settings_(settings) {}

  // Reads the clock. A trainer that was away for long gives its workers their time anew.
  void look(std::span<Member> members);
  // The time of the last look.
  [[nodiscard]] std::int64_t now_ns() const { return last_look_ns_; }
  // When the next deadline passes.
  [[nodiscard]] os::Deadline next(std::span<const Member> members) const;
  // When a trainer that waits for a deadline looks again, so that it knows whether it ran meanwhile.
  [[nodiscard]] os::Deadline next_look(std::span<const Member> members) const;

  enum class Missed { nothing, restart, start, end, task, death };
  // The deadline of this worker that has passed.
  [[nodiscard]] Missed missed_by(const Member& m) const;

  // A worker whose tasks have a time limit made progress: its time begins anew.
  void note_progress(Member& m, std::int64_t at_ns) const {
    m.progress_ns = at_ns;
    m.excused = 0;
  }
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
