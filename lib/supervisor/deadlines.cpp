// SPDX-License-Identifier: Apache-2.0
// Computes the deadlines of workers, and restarts them after an absence of the trainer.
#include "supervisor/deadlines.hpp"

#include <algorithm>
#include <utility>

namespace feedlane::supervisor {
namespace {

// How often in a row the deadline of a worker without progress may be restarted because the trainer was away.
constexpr std::uint32_t most_excuses = 8;

}  // namespace

os::Deadline Deadlines::next(std::span<const Member> members) const {
  os::Deadline first = os::Deadline::never();
  for (const Member& m : members) {
    if (m.peer.is_on_its_way()) first = first.earlier(os::Deadline::at(m.start_deadline_ns));
    first = first.earlier(m.end_deadline);
    if (m.start_again_ns != 0) first = first.earlier(os::Deadline::at(m.start_again_ns));
    if (has_task_deadline(m)) first = first.earlier(os::Deadline::at(task_deadline_ns(m)));
    if (m.peer.killed_ns() != 0 && !m.is_stuck)
      first = first.earlier(os::Deadline::at(m.peer.killed_ns() + patience_with_death_ns));
  }
  return first;
}

Deadlines::Missed Deadlines::missed_by(const Member& m) const {
  const std::int64_t now = last_look_ns_;
  if (m.start_again_ns != 0 && m.start_again_ns <= now) return Missed::restart;
  if (m.peer.is_on_its_way() && m.start_deadline_ns <= now) return Missed::start;
  if (m.end_deadline.remaining_ns() == 0) return Missed::end;
  if (has_task_deadline(m) && task_deadline_ns(m) <= now) return Missed::task;
  if (m.peer.killed_ns() != 0 && !m.is_stuck && m.peer.killed_ns() + patience_with_death_ns <= now)
    return Missed::death;
  return Missed::nothing;
}

// ---- absences ----

std::int64_t Deadlines::look_every_ns() const {
  const std::int64_t start = settings_.start_timeout_ns;
  return (settings_.has_task_timeout() ? std::min(settings_.task_timeout_ns, start) : start) / 4;
}

os::Deadline Deadlines::next_look(std::span<const Member> members) const {
  const auto is_watched = [this](const Member& m) {
    return has_task_deadline(m) || (m.peer.is_on_its_way() && m.start_deadline_ns != FEEDLANE_FOREVER);
  };
  const bool any = std::any_of(members.begin(), members.end(), is_watched);
  return any && look_every_ns() < FEEDLANE_FOREVER / 8 ? os::Deadline::at(last_look_ns_ + look_every_ns())
                                                       : os::Deadline::never();
}

// A trainer that has not looked for half of a time limit may have been stopped, or may have got no processor, and its
// workers too. So their deadlines are restarted. After a shorter absence they still have the other half.
void Deadlines::look(std::span<Member> members) {
  const std::int64_t now = os::now_ns();
  const std::int64_t absence = now - std::exchange(last_look_ns_, now);
  if (absence <= 2 * look_every_ns()) return;
  for (Member& m : members) excuse(m, absence);
}

// The trainer may have run all the time, busy elsewhere, and its workers too. So the number of excuses is limited.
void Deadlines::excuse(Member& m, std::int64_t absence_ns) const {
  if (m.excused >= most_excuses) return;
  if (has_task_deadline(m) && absence_ns > settings_.task_timeout_ns / 2) {
    m.progress_ns = last_look_ns_;
  } else if (m.peer.is_on_its_way() && m.start_deadline_ns != FEEDLANE_FOREVER &&
             absence_ns > settings_.start_timeout_ns / 2) {
    m.start_deadline_ns = last_look_ns_ + settings_.start_timeout_ns;
  } else {
    return;
  }
  m.excused++;
}

// ---- single deadlines ----

std::int64_t Deadlines::attach_deadline_ns(bool has_one) const {
  return has_one && settings_.has_start_timeout() ? os::now_ns() + settings_.start_timeout_ns : FEEDLANE_FOREVER;
}

// Without a task timeout there is no deadline for opening a data set either, because that may take long.
std::int64_t Deadlines::open_deadline_ns() const { return attach_deadline_ns(settings_.has_task_timeout()); }

bool Deadlines::has_task_deadline(const Member& m) const {
  return settings_.has_task_timeout() && m.is_ready() && m.peer.tasks().unfinished() != 0;
}

// Counted from the last progress: a task was sent to an idle worker, a task was begun or answered, or an absence of the
// trainer ended. The worker's own record of when it began a task is not used.
std::int64_t Deadlines::task_deadline_ns(const Member& m) const {
  const std::int64_t timeout = settings_.task_timeout_ns;
  return m.progress_ns > FEEDLANE_FOREVER - timeout ? FEEDLANE_FOREVER : m.progress_ns + timeout;
}

}  // namespace feedlane::supervisor
