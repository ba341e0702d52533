// SPDX-License-Identifier: Apache-2.0
// Gives the tasks of dead and stuck workers to others. A task that has ended too many workers is quarantined.
#include <algorithm>

#include "loader/dispatcher.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::loader {

using State = Entry::State;
using supervisor::Member;

namespace {

const char* description_of(const Member& stuck) {
  return stuck.peer.is_thread() ? "a thread, hangs" : "a process, is still running after SIGKILL";
}

// Slots of abandoned batches that stuck workers have not answered.
std::uint32_t kept_by_stuck(const Ledger& ledger, const supervisor::Roster& roster) {
  std::uint32_t kept = 0;
  for (std::uint32_t slot = 0; roster.stuck() != 0 && slot < ledger.slots(); slot++) {
    const Entry& e = ledger.at(slot);
    if (e.state == State::abandoned && roster.at(e.worker).is_stuck) kept++;
  }
  return kept;
}

}  // namespace

// ---- lookups for the crew ----

std::int64_t Dispatcher::count_kill(std::uint32_t worker, std::uint64_t task, pid_t pid, const char* how) {
  const Entry* entry = ledger_.find(task, worker);
  if (entry == nullptr || entry->state != State::sent) return -1;
  ledger_.count_kill(entry->slot, pid, how);
  return entry->batch;
}

TaskFacts Dispatcher::facts_of(std::uint32_t worker, std::uint64_t task, std::uint64_t row) const {
  const Entry* entry = ledger_.find(task, worker);
  if (entry == nullptr || entry->state != State::sent) return {};
  return {entry->batch, row < entry->rows ? order_->row_sample(*entry, static_cast<std::uint32_t>(row)) : -1};
}

// ---- a worker is gone ----

std::int64_t Dispatcher::on_gone(std::uint32_t worker, const Gone& gone) {
  std::int64_t in_hand = -1;
  for (std::uint32_t slot = 0; slot < ledger_.slots(); slot++) {
    const Entry& entry = ledger_.at(slot);
    if (!entry.is_out() || entry.worker != worker) continue;
    if (entry.state == State::abandoned) {
      ledger_.retire(slot);
      memory_.slots.put_back(slot);
      continue;
    }
    if (entry.id == gone.blamed_task) {
      if (gone.counts_kill) ledger_.count_kill(slot, gone.pid, gone.how);
      in_hand = entry.batch;
    }
    if (entry.kills >= config_.max_kills_per_batch) {
      quarantine(entry, worker);
    } else {
      ledger_.retry(slot);
      shm::add(memory_.counters().redispatched);
    }
  }
  order_->on_gone(worker, gone.how, gone.pid);
  if (gone.leaves_memory_in_doubt) memory_.slot_memory.doubt_all();
  if (!gone.is_stopping) memory_.restore_free_slots();
  return in_hand;
}

void Dispatcher::quarantine(const Entry& entry, std::uint32_t worker) {
  Contents& contents = ledger_.contents(entry.slot);
  const char* const lost = order_->on_quarantined(worker);
  Error error;
  (void)error.refuse(FEEDLANE_E_QUARANTINED, "config.max_kills_per_batch", entry.kills, config_.max_kills_per_batch,
                     "{} workers have died while making this batch; the last one: {}{}", entry.kills,
                     contents.error.text, lost);
  error.worker = static_cast<std::int32_t>(worker);
  error.epoch = order_->epoch();
  error.batch = entry.batch;
  contents.made.records.clear();
  contents.error = std::move(error);
  ledger_.fail(entry.slot);
  shm::add(memory_.counters().quarantined);
  events_.push(FEEDLANE_EVENT_QUARANTINED, contents.error);
}

// ---- a worker is stuck ----

void Dispatcher::restate_stuck() {
  for (std::uint32_t w = 0; w < roster_.size(); w++)
    if (roster_.at(w).is_stuck) order_->on_stuck(w, description_of(roster_.at(w)));
}

// A thread cannot be ended, and a process that SIGKILL does not end is stuck in the kernel. Either may continue to
// write. So the slot of its current task is lost until it answers or dies, and the batch goes to another worker in
// another slot, as soon as one is free. Tasks that it has not begun are taken back.
void Dispatcher::on_stuck(std::uint32_t worker) {
  order_->on_stuck(worker, description_of(roster_.at(worker)));
  choice_.note(worker);
  (void)take_back_from(worker);
  rescue_stranded();
  assign_pending();
}

// Moves the current tasks of stuck workers to other slots, the oldest first. The last free slot is kept for the batch
// that is yielded next, although its worker may not be stuck.
void Dispatcher::rescue_stranded() {
  any_stranded_ = false;
  queued_.clear();
  std::uint32_t oldest = Entry::anyone;
  ledger_.for_each_in_order([&](const Entry& entry) {
    if (oldest == Entry::anyone) oldest = entry.slot;
    if (entry.state == State::sent && roster_.at(entry.worker).is_stuck) queued_.emplace_back(entry.id, entry.slot);
  });
  for (const auto& [id, slot] : queued_) {
    const bool may_take_last = slot == oldest || config_.out_of_order;
    free_when_stranded_ = memory_.slots.free();
    if (free_when_stranded_ > (may_take_last ? 0 : 1) && rescue(ledger_.at(slot))) continue;
    any_stranded_ = true;
    return;
  }
}

// False: no slot is free.
bool Dispatcher::rescue(const Entry& entry) {
  std::uint32_t other = 0;
  if (!take_slot(other)) return false;
  const std::uint32_t worker = entry.worker;
  shm::write_list(memory_.segments.index_list(other), memory_.segments.index_list(entry.slot), entry.rows);
  ledger_.move(entry.slot, other);
  const Entry& moved = ledger_.at(other);
  if (moved.kills < config_.max_kills_per_batch) shm::add(memory_.counters().redispatched);
  else quarantine(moved, worker);
  return true;
}

// ---- what keeps `next` from yielding ----

// Pending releases are read first: a stream's release frees its slot before it stops counting as pending.
bool Dispatcher::is_out_of_slots() const {
  return !memory_.any_release_pending() && ledger_.in_flight() == 0 && !order_->is_exhausted() &&
         memory_.slots.free() == 0 && ledger_.abandoned() == kept_by_stuck(ledger_, roster_) &&
         (roster_.stuck() == 0 || memory_.slots.held() > config_.held);
}

bool Dispatcher::is_left_to_stuck() const {
  Error ignored;
  return roster_.stuck() != 0 && obstacle_of_stuck(ignored) != FEEDLANE_OK;
}

Status Dispatcher::obstacle(Error& error) const {
  const std::uint32_t held = memory_.slots.held();
  if (is_out_of_slots())
    return error.refuse(FEEDLANE_SLOTS_HELD, "config.held", held, config_.held,
                        "the trainer holds {} batches, so no slot is free: release one, or raise config.held", held);
  return roster_.stuck() == 0 ? FEEDLANE_OK : obstacle_of_stuck(error);
}

// Returns an error if the remaining work is left to stuck workers.
Status Dispatcher::obstacle_of_stuck(Error& error) const {
  const auto members = roster_.members();
  const std::uint32_t held = memory_.slots.held(), slots = memory_.slots.size();
  const auto may_answer = [](const Member& m) { return !m.is_stuck && m.peer.tasks().unfinished() != 0; };
  const bool may_come_back = memory_.any_release_pending();  // looked at before the slots are counted, as above
  const bool is_waiting = any_stranded_ || (ledger_.in_flight() == 0 && !order_->is_exhausted() &&
                                            ledger_.abandoned() == kept_by_stuck(ledger_, roster_));
  if (!may_come_back && is_waiting && memory_.slots.free() == 0 &&
      std::none_of(members.begin(), members.end(), may_answer)) {
    if (held > config_.held)
      return error.refuse(
          FEEDLANE_SLOTS_HELD, "config.held", held, config_.held,
          "the trainer holds {} batches, so no slot is free to retry the batch of a hung worker: release one", held);
    return error.refuse(FEEDLANE_E_HUNG, "config.arena_bytes", slots, slots + roster_.stuck(),
                        "no slot of {} is free to retry the batches of {} hung workers: they keep their slots, and the "
                        "others hold later batches",
                        slots, roster_.stuck());
  }
  // A worker that is starting, or will be started, can continue.
  const auto is_out = [](const Member& m) { return m.is_stuck || !m.is_there(); };
  const bool may_come = launcher_->starts_workers() && roster_.stuck() < roster_.size();
  if (ledger_.pending() == 0 || may_come || !std::all_of(members.begin(), members.end(), is_out)) return FEEDLANE_OK;
  const std::uint32_t workers = roster_.size();
  if (roster_.stuck() < workers)
    return error.refuse(FEEDLANE_E_PEER_DEAD, "workers", 0, 1,
                        "{} of {} workers cannot be ended, and no other is attached or expected: call "
                        "feedlane_loader_open_worker",
                        roster_.stuck(), workers);
  if (!launcher_->can_kill())
    return error.refuse(FEEDLANE_E_HUNG, launcher_->blamed_argument(), workers, workers,
                        "every worker thread ({}) hangs, so no batch can be made", workers);
  return error.refuse(
      FEEDLANE_E_HUNG, launcher_->blamed_argument(), workers, workers,
      "every worker ({}) is still running after SIGKILL, so no batch can be made until one of them exits", workers);
}

}  // namespace feedlane::loader
