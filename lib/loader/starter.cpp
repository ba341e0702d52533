// SPDX-License-Identifier: Apache-2.0
// Opens places and starts workers in them, for the library and for the host.
#include "loader/starter.hpp"

#include <unistd.h>

#include <utility>

#include "os/limits.hpp"
#include "os/process.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::loader {

using supervisor::Member;

Status Starter::set_up(supervisor::ChildMain child_main, Error& error) {
  launcher_ = supervisor::make_launcher(settings_, std::move(child_main));
  Status s = os::open_pidfd(::getpid(), self_, error);
  if (s == FEEDLANE_OK) s = launcher_->set_up(error);
  if (s == FEEDLANE_OK) s = check_descriptors(error);
  return s == FEEDLANE_OK && launcher_->starts_early() ? start_missing(error) : s;
}

Status Starter::check_descriptors(Error& error) const {
  return os::check_descriptors(launcher_->descriptors(roster_.size()), error);
}

Status Starter::open(std::uint32_t w, os::Fd& theirs, Error& error) {
  Member& m = roster_.at(w);
  m.reset_generation();
  m.is_due = launcher_->starts_at_once();
  m.start_deadline_ns = deadlines_.attach_deadline_ns(launcher_->has_start_deadline());
  const Status s = m.peer.open(segments_, roster_.lanes().prepare(w), dispatcher_.epoch(), settings_.lifeline,
                               self_.get(), waiter_.poller(), theirs, error);
  if (s == FEEDLANE_OK && std::exchange(m.died, false)) count_restart(m.loss);
  return s;
}

void Starter::count_restart(Member::Loss loss) {
  shm::LoaderCounters& counters = *segments_.counters();
  shm::add(counters.restarts);
  switch (loss) {
    case Member::Loss::exit: return shm::add(counters.restarts_exit);
    case Member::Loss::signal: return shm::add(counters.restarts_signal);
    case Member::Loss::hung: return shm::add(counters.restarts_hung);
    case Member::Loss::invalid: return shm::add(counters.restarts_invalid);
    case Member::Loss::unattached: return shm::add(counters.restarts_unattached);
  }
}

Status Starter::start(std::uint32_t w, Error& error) {
  os::Fd theirs;
  Status s = open(w, theirs, error);
  if (s == FEEDLANE_OK) {
    s = launcher_->start(roster_.at(w).peer, std::move(theirs), waiter_.poller(), error);
    if (s != FEEDLANE_OK) roster_.lanes().close(w);  // even if a process ran: it was killed
  }
  if (s != FEEDLANE_OK) error.worker = static_cast<std::int32_t>(w);
  return s;
}

Status Starter::start_missing(Error& error) {
  for (std::uint32_t w = 0; w < roster_.size(); w++) {
    Member& m = roster_.at(w);
    m.was_late = false;
    if (m.is_there()) continue;
    m.start_failures = 0;
    m.was_given_up = false;
    if (!launcher_->starts_workers()) continue;
    if (const Status s = start(w, error); s != FEEDLANE_OK) return s;
  }
  return FEEDLANE_OK;
}

Status Starter::open_place(std::int32_t& id, os::Fd& fd, Error& error) {
  const auto count = static_cast<std::int32_t>(roster_.size());
  if (id < -1 || id >= count)
    return error.refuse(FEEDLANE_E_ARGUMENT, "id", id, count - 1,
                        "id is {}: must be -1 (any worker) or below config.workers, {}", id, count);
  for (std::int32_t i = id < 0 ? 0 : id; i < (id < 0 ? count : id + 1); i++) {
    const auto w = static_cast<std::uint32_t>(i);
    if (roster_.at(w).is_there()) continue;
    if (roster_.at(w).was_given_up) {
      if (id < 0) continue;
      return FEEDLANE_END;
    }
    if (const Status s = open(w, fd, error); s != FEEDLANE_OK) return s;
    id = i;
    return launcher_->start(roster_.at(w).peer, os::Fd(), waiter_.poller(), error);
  }
  if (id < 0) return FEEDLANE_END;
  return error.refuse(FEEDLANE_E_STATE, "id", id, -1, "worker {} is already attached or expected", id);
}

Status Starter::take_offer(os::Fd& fd, Error& error) {
  return launcher_ == nullptr ? supervisor::refuse_offer(settings_.start, error) : launcher_->take_offer(fd, error);
}

void Starter::close_in_child() {
  for (Member& m : roster_.members()) m.peer.close_in_child();
  self_.reset();
}

}  // namespace feedlane::loader
