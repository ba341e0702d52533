// SPDX-License-Identifier: Apache-2.0
// Acts on missed deadlines and failed audits.
#include <cstring>
#include <string>

#include "loader/crew.hpp"
#include "os/other_process.hpp"
#include "shm/shared_read.hpp"
#include "supervisor/audit.hpp"
#include "supervisor/cause.hpp"

namespace feedlane::loader {

using supervisor::Deadlines;
using supervisor::Member;
using supervisor::Peer;
using supervisor::State;
using supervisor::TaskRing;

// ---- deadlines ----

void Crew::check_deadlines() {
  sweep();  // what was sent in time
  for (std::uint32_t w = 0; w < size(); w++) {
    Member& m = roster_.at(w);
    switch (deadlines_.missed_by(m)) {
      case Deadlines::Missed::nothing: break;
      case Deadlines::Missed::restart: starter_.start_at_last(w); break;
      case Deadlines::Missed::start: give_up_start(w); break;
      case Deadlines::Missed::end:
        m.end_deadline = m.peer.escalate() ? os::Deadline::after(settings_.term_timeout_ns) : os::Deadline::never();
        break;
      case Deadlines::Missed::task: give_up_task(w); break;
      case Deadlines::Missed::death: give_up_death(w); break;
    }
  }
}

// The worker has not attached, or not opened its data set. If others continue, it is replaced like a dead worker.
void Crew::give_up_start(std::uint32_t w) {
  Member& m = roster_.at(w);
  Peer& peer = m.peer;
  const bool is_replaced = roster_.others_continue(w);
  const bool is_child = starter_.launcher().owns_processes();
  m.was_late = m.is_late = true;
  m.start_deadline_ns = FEEDLANE_FOREVER;
  Error& error = m.verdict;
  (void)error.refuse(FEEDLANE_E_HUNG, "config.start_timeout_ns", settings_.start_timeout_ns, settings_.start_timeout_ns,
                     "worker {} (pid {}) has not {} within {} ms", w, peer.pid(),
                     peer.has_attached() ? "opened its data set" : "attached", settings_.start_timeout_ns / 1'000'000);
  error.worker = static_cast<std::int32_t>(w);
  if (is_child || peer.has_attached()) {
    if (is_replaced || !starter_.launcher().starts_workers()) events_.push(FEEDLANE_EVENT_WORKER_HUNG, error);
    else failure_.set(error);
  }
  if (peer.is_thread()) {  // a thread can't be ended
    if (is_replaced) stick(w);
    return;
  }
  if (is_child && !is_replaced) peer.set_state(State::failed);
  if (peer.has_process()) peer.cut_off(waiter_.poller());
  else handle_end(w);
}

// The worker makes no progress with its task. It is reported and killed; its tasks go to others once its end is
// observed.
void Crew::give_up_task(std::uint32_t w) {
  Member& m = roster_.at(w);
  Peer& peer = m.peer;
  const std::int64_t for_ns = deadlines_.now_ns() - m.progress_ns;
  const TaskFacts facts = dispatcher_.facts_of(w, peer.tasks().in_hand(), peer.tasks().row_in_hand());
  const std::string where = peer.is_thread() ? "it is a thread" : os::describe_process(peer.pid());
  Error error;
  (void)error.refuse(FEEDLANE_E_HUNG, "config.task_timeout_ns", for_ns, settings_.task_timeout_ns,
                     "worker {} (pid {}) has made no progress for {} ms with batch {}, sample {}: {}", w, peer.pid(),
                     for_ns / 1'000'000, facts.batch, facts.sample, where);
  error.worker = static_cast<std::int32_t>(w);
  error.epoch = dispatcher_.epoch();
  error.batch = facts.batch;
  error.sample = facts.sample;
  events_.push(FEEDLANE_EVENT_WORKER_HUNG, error);
  shm::add(segments_.counters()->hung);
  m.is_late = true;
  m.verdict = error;
  if (peer.is_thread()) return stick(w);
  peer.cut_off(waiter_.poller());
}

// The worker was sent SIGKILL long ago and still exists: it is frozen, or in uninterruptible sleep on a disk or network
// that does not answer. It may use its rings and its row until its pidfd reports its end, so its place stays taken
// until then.
void Crew::give_up_death(std::uint32_t w) {
  drain_lane(w);  // what it committed counts
  Member& m = roster_.at(w);
  const std::int64_t for_ns = os::now_ns() - m.peer.killed_ns();
  supervisor::Words how;
  (void)format_to(how, "is still running {} ms after SIGKILL: {}", for_ns / 1'000'000,
                  os::describe_process(m.peer.pid()));
  const std::uint64_t blamed = m.refused_task != 0 ? m.refused_task : m.peer.tasks().in_hand();
  const std::int64_t batch = dispatcher_.count_kill(w, blamed, m.peer.pid(), how);
  Error error;
  (void)error.refuse(FEEDLANE_E_HUNG, "worker", for_ns, supervisor::patience_with_death_ns, "worker {} (pid {}) {}", w,
                     m.peer.pid(), how);
  error.worker = static_cast<std::int32_t>(w);
  error.epoch = batch < 0 ? -1 : dispatcher_.epoch();
  error.batch = batch;
  events_.push(FEEDLANE_EVENT_WORKER_HUNG, error);
  stick(w);
}

void Crew::stick(std::uint32_t w) {
  roster_.set_stuck(w);
  dispatcher_.on_stuck(w);
}

// ---- audits ----

bool Crew::audit() {
  look();
  ledger_.find_oldest(oldest_);
  bool any_news = false;
  for (std::uint32_t w = 0; w < size(); w++) any_news = audit(w, oldest_[w]) || any_news;
  return any_news;
}

bool Crew::audit(std::uint32_t w, std::uint64_t oldest) {
  Member& m = roster_.at(w);
  TaskRing& tasks = m.peer.tasks();
  const std::int64_t now = deadlines_.now_ns();
  if (m.peer.state() != State::ready) m.progress_ns = now;
  if (!m.peer.has_attached() || !m.peer.is_live()) return false;
  const TaskRing::Marks marks = tasks.marks();
  const bool is_ready_due = m.peer.state() == State::opening && marks.begun != 0;
  if (is_ready_due) handle_message(w);
  if (!m.peer.has_attached() || !m.peer.is_live()) return is_ready_due;
  Error error;
  if (check_marks(w, m, marks, roster_.lanes(), oldest, error) != FEEDLANE_OK) {
    std::uint64_t blamed = marks.in_hand;  // the task in hand, if the mark is valid
    if (ledger_.find(blamed, w) == nullptr) blamed = marks.begun;
    if (ledger_.find(blamed, w) == nullptr) blamed = oldest;
    disown(w, blamed, error);
    return true;
  }
  // Beginning a task counts as progress. So a worker can extend its deadline at most once per task, whatever it writes.
  if (marks.begun > m.seen_task && ledger_.find(marks.begun, w) != nullptr) m.note_progress(now);
  m.seen_task = marks.begun;
  // Passing over a sample that its shard delivered before counts as progress too, because it takes as long as making
  // the sample did. This extends the deadline at most once per such sample.
  const std::uint64_t passed_over = tasks.passed_over();
  if (passed_over > m.seen_passed_over && passed_over <= dispatcher_.delivered_by(w)) {
    m.note_progress(now);
    m.seen_passed_over = passed_over;
  }
  return is_ready_due;
}

// Ends a worker whose row or results cannot be valid. The rest of its lane is ignored, and its tasks go to others only
// after its end. `task`: the task to blame, 0: none.
void Crew::disown(std::uint32_t w, std::uint64_t task, const Error& why) {
  Member& m = roster_.at(w);
  Error error = why;
  if (segments_.is_under_suspicion()) {
    const std::size_t length = std::strlen(error.text);
    copy_text(error.text + length, sizeof error.text - length,
              "; the file mode of the loader's data was changed, so another process may have written this");
  }
  error.worker = static_cast<std::int32_t>(w);
  shm::add(segments_.counters()->invalid_results);
  m.is_invalid = true;
  m.verdict = error;
  events_.push(FEEDLANE_EVENT_INVALID, error);
  if (ledger_.find(task, w) != nullptr) m.refused_task = task;
  roster_.lanes().shut(w);
  if (!m.peer.is_ending()) m.peer.cut_off(waiter_.poller());
}

}  // namespace feedlane::loader
