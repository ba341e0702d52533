// SPDX-License-Identifier: Apache-2.0
// Chooses among ready workers by the number of their tasks, and among all while none is ready.
#include "loader/worker_choice.hpp"

#include <algorithm>
#include <tuple>

namespace feedlane::loader {

using supervisor::Member;

namespace {

// Before it attaches, a worker gets tasks only if it is due: others may never attach.
bool can_take(const Member& m, std::uint32_t prefetch_factor) {
  const supervisor::TaskRing& tasks = m.peer.tasks();
  return m.peer.is_live() && (m.peer.has_attached() || m.is_due) && tasks.unfinished() < prefetch_factor &&
         tasks.has_room() && !m.is_stuck;
}

// A worker with revoked tasks is as late as if it had to make them.
std::uint32_t tasks_of(const Member& m) {
  return m.peer.tasks().unfinished() + static_cast<std::uint32_t>(m.peer.tasks().revoked());
}

}  // namespace

void WorkerChoice::use(int cpus, shm::Word64& told) {
  engagement_.use(roster_.size(), cpus, told);
  std::uint32_t most = 0;
  for (const Member& m : roster_.members()) most = std::max(most, m.peer.tasks().capacity());
  ready_.reset(roster_.size(), most);
  starting_.reset(roster_.size(), most);
}

void WorkerChoice::note(std::uint32_t worker) {
  const Member& m = roster_.at(worker);
  const bool is_starting = !m.is_ready() && m.peer.is_live();
  ready_.set(worker, m.is_ready() ? tasks_of(m) : Vacancies::none);
  starting_.set(worker, is_starting ? m.peer.tasks().unfinished() : Vacancies::none);
}

void WorkerChoice::note_all() {
  for (std::uint32_t w = 0; w < roster_.size(); w++) note(w);
}

// Whether a task that is bound to no worker may go to this one now.
bool WorkerChoice::is_candidate(const Entry& entry, std::uint32_t worker) const {
  const Member& m = roster_.at(worker);
  return can_take(m, prefetch_.per_worker()) && (worker < engagement_.workers() || entry.avoid != Entry::anyone) &&
         !(holds_ && m.peer.tasks().is_asleep());
}

std::uint32_t WorkerChoice::choose(const Entry& entry) {
  // The batches of a lost worker go to others, unless no other worker can make them.
  if (entry.home != Entry::anyone && (entry.is_bound || !roster_.at(entry.home).is_lost()))
    return can_take(roster_.at(entry.home), prefetch_.per_worker()) ? entry.home : Entry::anyone;
  const auto accepts = [&](std::uint32_t w) { return is_candidate(entry, w); };
  const std::uint32_t looks = holds_ ? looks_for_awake : UINT32_MAX;
  const std::uint32_t best = entry.avoid == Entry::anyone && ready_.size() != 0
                                 ? ready_.find({last_, engagement_.workers(), prefetch_.per_worker(), looks}, accepts)
                                 : choose_of_all(entry);
  if (best != Entry::anyone) last_ = best;
  return best;
}

// A worker that is still starting gets tasks only while no worker is ready, because the start may take long.
std::uint32_t WorkerChoice::choose_of_all(const Entry& entry) const {
  std::uint32_t best = Entry::anyone;
  bool any_ready = false;
  const auto rank = [&](std::uint32_t w) {
    const Member& m = roster_.at(w);
    const int readiness = m.peer.state() == supervisor::State::ready ? 0 : m.peer.has_attached() ? 1 : 2;
    return std::tuple(readiness, w == entry.avoid ? 1 : 0, tasks_of(m));
  };
  for (std::uint32_t i = 1; i <= roster_.size(); i++) {
    const std::uint32_t w = (last_ + i) % roster_.size();
    any_ready = any_ready || roster_.at(w).is_ready();
    if (is_candidate(entry, w) && (best == Entry::anyone || rank(w) < rank(best))) best = w;
  }
  return best != Entry::anyone && any_ready && !roster_.at(best).is_ready() ? Entry::anyone : best;
}

bool WorkerChoice::is_uneven() const { return ready_.size(0) != 0 && (ready_.any_from(2) || starting_.any_from(1)); }

}  // namespace feedlane::loader
