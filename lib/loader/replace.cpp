// SPDX-License-Identifier: Apache-2.0
// Starts replacements for workers that are gone.
#include <new>

#include "loader/starter.hpp"
#include "supervisor/cause.hpp"

namespace feedlane::loader {

using supervisor::Member;

namespace {

// A place is given up after this many generations in a row that ended before they were ready. A program that is not a
// worker ends at once, every time.
constexpr std::uint32_t max_start_failures = 5;
// Interval between attempts to start a replacement that could not be started for lack of a resource.
constexpr std::int64_t start_again_every_ns = 100'000'000;

void tell_of_starts(std::uint32_t w, const Member& m, const Gone& gone, const std::vector<std::string>& argv,
                    Error& error) {
  char why[sizeof error.text] = "";
  const bool has_attached = m.peer.has_attached();
  if (*m.peer.why_not_attached() != '\0') (void)format_to(why, ": {}", first(280, m.peer.why_not_attached()));
  else if (!has_attached && !argv.empty())
    (void)format_to(why, ": is {} a Feedlane worker program?", first(200, argv[0]));
  supervisor::Name who;
  supervisor::name_process(gone.pid, who);
  (void)error.refuse(FEEDLANE_E_INIT, argv.empty() ? "worker" : "config.argv", m.start_failures, max_start_failures,
                     "worker {}: {}{} before it {} ({} times in a row){}", w, who, gone.how,
                     has_attached ? "was ready" : "attached", m.start_failures, why);
}

}  // namespace

// Starts a replacement. Too little memory is a failed start like any other.
Status Starter::start_again(std::uint32_t w, Error& error) {
  try {
    return start(w, error);
  } catch (const std::bad_alloc&) {
    roster_.lanes().close(w);
    roster_.at(w).peer.close(waiter_.poller());
    return error.fail(FEEDLANE_E_MEMORY, "worker {} can't be started: out of memory", w);
  }
}

void Starter::replace(std::uint32_t w, bool was_ready, const Gone& gone) {
  Member& m = roster_.at(w);
  if (m.died && !was_ready && ++m.start_failures >= max_start_failures) return give_up_place(w, gone);
  if (m.died && exceeds_restarts(w, gone)) return;
  if (!launcher_->starts_workers()) return;  // the host starts another one
  if (m.lost_message) {                      // an immediate start would fail too; the error was reported
    m.start_again_ns = os::now_ns() + start_again_every_ns;
    return;
  }
  Error error;
  if (start_again(w, error) == FEEDLANE_OK) {
    (void)error.fail(FEEDLANE_OK, "worker {}: process {} replaces one that {}", w, m.peer.pid(), gone.how);
    error.worker = static_cast<std::int32_t>(w);
    return events_.push(FEEDLANE_EVENT_WORKER_STARTED, error);
  }
  start_later(w, error);
  if (roster_.any_there()) events_.push(FEEDLANE_EVENT_WARNING, error);  // the others continue
}

// Whether replacing this worker, and all others that died, would be more than max_restarts. Then the loader fails.
bool Starter::exceeds_restarts(std::uint32_t w, const Gone& gone) {
  const std::uint64_t restarts = segments_.counters()->restarts.load(std::memory_order_relaxed);
  const std::uint64_t needed = restarts + roster_.to_replace();
  if (needed <= settings_.max_restarts) return false;
  supervisor::Name who;
  supervisor::name_process(gone.pid, who);
  Error error;
  (void)error.refuse(
      FEEDLANE_E_RESTARTS, "config.max_restarts", needed, settings_.max_restarts,
      "worker {}: {}{}; replacing it would be more than max_restarts allows: {} of at most {} workers were "
      "replaced",
      w, who, gone.how, restarts, settings_.max_restarts);
  error.worker = static_cast<std::int32_t>(w);
  roster_.at(w).was_given_up = true;
  failure_.set(error);
  return true;
}

// The starts in this place fail every time. The others continue without it, until the next epoch tries again.
void Starter::give_up_place(std::uint32_t w, const Gone& gone) {
  Member& m = roster_.at(w);
  Error error = m.verdict;  // why the last generation was ended, if it was
  if (error.code == FEEDLANE_OK) tell_of_starts(w, m, gone, settings_.argv, error);
  error.worker = static_cast<std::int32_t>(w);
  m.was_given_up = true;
  if (dispatcher_.binds_workers() || !roster_.others_continue(w)) return failure_.set(error);
  events_.push(FEEDLANE_EVENT_WARNING, error);
}

// Tries again later, when the missing resource may be available.
void Starter::start_later(std::uint32_t w, Error& error) {
  error.worker = static_cast<std::int32_t>(w);
  roster_.at(w).start_again_ns = os::now_ns() + start_again_every_ns;
  if (!roster_.any_there()) error_ = error;
}

// The missing resource may be available now. The first failure was reported. As long as there is no worker, each
// further failure is returned.
void Starter::start_at_last(std::uint32_t w) {
  Member& m = roster_.at(w);
  if (!dispatcher_.is_work_left()) {
    m.start_again_ns = 0;  // the next begin starts it
    return;
  }
  Error error;
  if (start_again(w, error) != FEEDLANE_OK) return start_later(w, error);
  (void)error.fail(FEEDLANE_OK, "worker {}: process {} replaces one that could not be replaced immediately", w,
                   m.peer.pid());
  error.worker = static_cast<std::int32_t>(w);
  events_.push(FEEDLANE_EVENT_WORKER_STARTED, error);
  dispatcher_.on_ready();
}

}  // namespace feedlane::loader
