// SPDX-License-Identifier: Apache-2.0
// Another worker in the place of one that is gone.
#include <new>

#include "supervisor/starter.hpp"

namespace feedlane::supervisor {
namespace {

// Generations in a row that may end before they attach: a program that is no worker ends at once, every time.
constexpr std::uint32_t max_start_failures = 5;
// How often it is tried again to replace a worker that cannot be replaced for want of something.
constexpr std::int64_t start_again_every_ns = 100'000'000;

void tell_of_starts(std::uint32_t w, const Member& m, const Gone& gone, const std::vector<std::string>& argv,
                    Error& error) {
  char why[sizeof error.text];
  if (*m.peer.why_not_attached() != '\0') (void)format_to(why, "{}", first(280, m.peer.why_not_attached()));
  else (void)format_to(why, "is {} a feedlane worker?", argv.empty() ? "it" : first(200, argv[0]));
  (void)error.refuse(FEEDLANE_E_INIT, "config.argv", m.start_failures, max_start_failures,
                     "worker {}: process {} {} before it attached, the {}th in a row: {}", w, gone.pid, gone.how,
                     m.start_failures, why);
}

}  // namespace

// In place of a worker that died. Too little memory is a failure to start like any other.
Status Starter::start_again(std::uint32_t w, Error& error) {
  try {
    return start(w, error);
  } catch (const std::bad_alloc&) {
    roster_.lanes().close(w);
    roster_.at(w).peer.close(waiter_.poller());
    return error.fail(FEEDLANE_E_MEMORY, "worker {} can't be started: out of memory", w);
  }
}

void Starter::replace(std::uint32_t w, bool had_attached, const Gone& gone) {
  Member& m = roster_.at(w);
  if (!launcher_->starts_workers()) return;  // the host brings another one
  if (m.lost_message) {                      // the same would happen at once; it was told
    m.start_again_ns = os::now_ns() + start_again_every_ns;
    return;
  }
  Error error;
  const std::uint64_t restarts = segments_.counters()->restarts.load(std::memory_order_relaxed);
  if (!had_attached && ++m.start_failures >= max_start_failures) return give_up_place(w, gone);
  if (m.died && restarts >= settings_.max_restarts) {
    (void)error.refuse(FEEDLANE_E_RESTARTS, "config.max_restarts", restarts + 1, settings_.max_restarts,
                       "worker {}: process {} {}, and {} workers have been replaced already", w, gone.pid, gone.how,
                       restarts);
    error.worker = static_cast<std::int32_t>(w);
    return owner_.on_failure(error);
  }
  if (start_again(w, error) == FEEDLANE_OK) {
    (void)error.fail(FEEDLANE_OK, "worker {}: process {} replaces one that {}", w, m.peer.pid(), gone.how);
    error.worker = static_cast<std::int32_t>(w);
    return events_.push(FEEDLANE_EVENT_WORKER_STARTED, error);
  }
  start_later(w, error);
  if (roster_.any_there()) events_.push(FEEDLANE_EVENT_WARNING, error);  // the others continue
}

// Its starts fail every time. The others continue without it, until the next epoch tries again.
void Starter::give_up_place(std::uint32_t w, const Gone& gone) {
  Member& m = roster_.at(w);
  Error error = m.verdict;  // the last one's, if that was what was wrong
  if (error.code == FEEDLANE_OK) tell_of_starts(w, m, gone, settings_.argv, error);
  error.worker = static_cast<std::int32_t>(w);
  if (owner_.binds_workers() || !roster_.others_continue(w)) return owner_.on_failure(error);
  m.was_given_up = true;
  events_.push(FEEDLANE_EVENT_WARNING, error);
}

// What is missing now may be there then.
void Starter::start_later(std::uint32_t w, Error& error) {
  error.worker = static_cast<std::int32_t>(w);
  roster_.at(w).start_again_ns = os::now_ns() + start_again_every_ns;
  if (!roster_.any_there()) error_ = error;
}

// What was missing may be there by now. The first failure was told; as long as no worker is there, every one is.
void Starter::start_at_last(std::uint32_t w) {
  Member& m = roster_.at(w);
  if (!owner_.is_work_left()) {
    m.start_again_ns = 0;  // the next begin starts it
    return;
  }
  Error error;
  if (start_again(w, error) != FEEDLANE_OK) return start_later(w, error);
  (void)error.fail(FEEDLANE_OK, "worker {}: process {} replaces one that could not be replaced at once", w,
                   m.peer.pid());
  error.worker = static_cast<std::int32_t>(w);
  events_.push(FEEDLANE_EVENT_WORKER_STARTED, error);
  owner_.on_ready();
}

}  // namespace feedlane::supervisor
