// SPDX-License-Identifier: Apache-2.0
// Asks workers to end, kills them, waits for their ends. A loader that is freed without a wait leaves them to the
// kernel.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <new>

#include "loader/crew.hpp"
#include "os/process.hpp"

namespace feedlane::loader {

using supervisor::Member;
using supervisor::Peer;
using supervisor::State;

namespace {

// A tracer may still hold workers that have ended. A sanitizer detaches soon, a debugger on its user's command. No
// event reports this.
void wait_for_tracers(const Wakeups& wakeups) {
  const os::Deadline until = os::Deadline::after(supervisor::patience_with_death_ns);
  while (!os::reap_abandoned() && !wakeups.is_closed() && until.remaining_ns() > 0) (void)::usleep(1000);
}

}  // namespace

// Checks the clock in every round, because a worker that never stops ringing causes an event in each.
Status Crew::wait_for_ends(os::Deadline deadline, bool is_interruptible, Error& error) {
  const auto handle_one = [this](const os::Poller::Event& event) { handle(event); };
  while (roster_.any_there()) {
    const Status s = waiter_.sleep_on_descriptors(deadline, handle_one, error);
    if (wakeups_.is_closed()) return FEEDLANE_INTERRUPTED;
    if (s == FEEDLANE_TIMEOUT || s < 0 || (s == FEEDLANE_INTERRUPTED && is_interruptible)) return s;
    if (deadline.remaining_ns() == 0 && roster_.any_there()) return FEEDLANE_TIMEOUT;
  }
  return FEEDLANE_OK;
}

// Waits for processes that SIGKILL did not end within their time. They may end soon: a process with much memory takes
// its time.
Status Crew::wait_for_undead(std::int64_t death_ns, Error& error) {
  const auto is_undead = [](const Member& m) { return m.is_undead(); };
  while (std::any_of(roster_.members().begin(), roster_.members().end(), is_undead)) {
    std::int64_t last = 0;
    for (const Member& m : roster_.members())
      if (m.is_undead()) last = std::max(last, m.peer.killed_ns() + death_ns);
    const auto handle_one = [this](const os::Poller::Event& event) { handle(event); };
    const Status s = waiter_.sleep_on_descriptors(os::Deadline::at(last), handle_one, error);
    if (wakeups_.is_closed()) return FEEDLANE_INTERRUPTED;
    if (s < 0) return s;
    // As in wait_for_ends: an unread message of a consumer of a shared loader causes an event in every round.
    if (os::now_ns() >= last && std::any_of(roster_.members().begin(), roster_.members().end(), is_undead))
      return FEEDLANE_TIMEOUT;
  }
  return FEEDLANE_OK;
}

// Rings the done-event of workers that have attached. The others have nothing to finish.
void Crew::ask_each_to_end() {
  for (std::uint32_t w = 0; w < size(); w++) {
    Peer& peer = roster_.at(w).peer;
    if (peer.state() == State::none || peer.was_cut_off()) continue;
    if (peer.has_attached()) {
      peer.ask_to_end();
    } else if (peer.has_process()) {
      peer.set_state(State::stopping);
      peer.kill(SIGKILL);
    } else {
      handle_end(w);
    }
  }
}

void Crew::ask_to_end() noexcept {
  if (size() == 0) return;
  starter_.launcher().withdraw_offers();
  is_stopping_ = true;
  try {
    ask_each_to_end();
  } catch (const std::bad_alloc&) {  // `end` asks the others, or `abandon` ends them
  }
  is_stopping_ = false;
}

// Kills the children. Other workers with a lifeline are killed when the destructor cuts it. Workers without one, and
// threads, end when they next ask for a task.
void Crew::abandon() noexcept {
  if (roster_.any_there()) ask_to_end();
  for (Member& m : roster_.members())
    if (m.is_there() && m.peer.is_child()) m.peer.abandon();
  (void)os::reap_abandoned();
}

Status Crew::end_gently(os::Deadline deadline, Error& error) {
  if (size() == 0) return FEEDLANE_OK;
  ask_each_to_end();
  return wait_for_ends(deadline.earlier(os::Deadline::after(settings_.stop_timeout_ns)), true, error);
}

void Crew::kill_all(int signal) {
  for (Member& m : roster_.members())
    if (m.is_there()) m.peer.kill(signal);
}

Status Crew::end(std::int64_t death_ns, Error& error) {
  if (size() == 0) return FEEDLANE_OK;
  is_stopping_ = true;
  for (Member& m : roster_.members()) m.start_again_ns = 0;
  starter_.launcher().withdraw_offers();
  Status s = handle_events(error);  // receives Attached of workers that have attached since
  ask_each_to_end();
  if (s >= 0) s = wait_for_ends(os::Deadline::after(settings_.stop_timeout_ns), false, error);
  if (s == FEEDLANE_TIMEOUT) {
    kill_all(SIGTERM);
    s = wait_for_ends(os::Deadline::after(settings_.term_timeout_ns), false, error);
  }
  if (s == FEEDLANE_TIMEOUT && starter_.launcher().can_kill()) {
    kill_all(SIGKILL);
    s = wait_for_ends(os::Deadline::after(death_ns), false, error);
  }
  if (s == FEEDLANE_TIMEOUT && starter_.launcher().can_kill()) {
    for (std::uint32_t w = 0; w < size(); w++)
      if (roster_.at(w).is_there() && !roster_.at(w).is_stuck) give_up_death(w);
    s = FEEDLANE_OK;
  }
  if (s == FEEDLANE_OK) s = wait_for_undead(death_ns, error);
  if (s == FEEDLANE_OK) wait_for_tracers(wakeups_);
  is_stopping_ = false;
  if (s != FEEDLANE_TIMEOUT) return s;
  for (std::uint32_t w = 0; w < size(); w++) {
    if (!roster_.at(w).is_there()) continue;
    (void)error.refuse(
        FEEDLANE_E_HUNG, "worker", w, 0, "worker {} (pid {}) is {}", w, roster_.at(w).peer.pid(),
        starter_.launcher().can_kill() ? "still running after SIGKILL" : "a thread that is still attached");
    error.worker = static_cast<std::int32_t>(w);
  }
  return FEEDLANE_E_HUNG;
}

}  // namespace feedlane::loader
