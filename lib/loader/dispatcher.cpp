// SPDX-License-Identifier: Apache-2.0
// Moves batches from the order into the ledger, and from there to workers.
#include "loader/dispatcher.hpp"

#include <algorithm>
#include <new>

#include "loader/staging.hpp"

namespace feedlane::loader {

using supervisor::Member;
using State = Entry::State;

void Dispatcher::use(Order& order) {
  order_ = &order;
  binds_ = config_.round_robin || order.has_shards();
}

void Dispatcher::use(const supervisor::Launcher& launcher, int cpus) {
  launcher_ = &launcher;
  to_ring_.reserve(config_.workers);
  choice_.use(cpus, memory_.segments.trainer_block()->engaged);
}

// ---- drawing ----

// A stuck worker keeps its slot, so there are fewer slots than the window assumes. In that case the last free slot is
// not used for a new batch, because the oldest batch needs it if its worker gets stuck too. Otherwise the oldest batch
// would wait for slots of later batches, which are yielded after it.
bool Dispatcher::can_draw() const {
  const bool keeps_one = roster_.stuck() != 0 && ledger_.in_flight() != 0;
  const auto has_slot = [&] { return keeps_one ? memory_.slots.free() > 1 : memory_.slots.any_free(); };
  return has_begun_ && !order_->is_exhausted() && !failure_.is_set() && sampler_error_.code == FEEDLANE_OK &&
         !wakeups_.awaits_sampler() && ledger_.in_flight() < prefetch_.window() && (order_->has_slot() || has_slot());
}

// Whether `can_draw` fails only because no slot is free. With a stuck worker, more than one slot may have to be free.
bool Dispatcher::lacks_slot() const {
  if (roster_.stuck() != 0) return true;
  return has_begun_ && !order_->is_exhausted() && ledger_.in_flight() < prefetch_.window() && !order_->has_slot() &&
         !memory_.slots.any_free();
}

// Takes a free slot for a batch.
bool Dispatcher::take_slot(std::uint32_t& slot) {
  if (!memory_.slots.take(slot)) return false;
  stamps_.settle(slot);
  return true;
}

Status Dispatcher::dispatch(Error& error) {
  Status s = FEEDLANE_OK;
  if (any_stranded_) rescue_stranded();  // before a new batch takes the slot
  memory_.restore_free_slots();
  while (s == FEEDLANE_OK && can_draw()) {
    if (!order_->has_slot()) {
      std::uint32_t slot = 0;
      if (!take_slot(slot)) break;
      order_->use_slot(slot);
    }
    s = order_->draw(error);
    const bool has_none = s == FEEDLANE_AGAIN || order_->is_exhausted();
    if (has_none)  // a live sampler's batch must not keep a slot from the batches in flight
      if (const auto slot = order_->drop_drawn()) memory_.slots.put_back(*slot);
    if (s == FEEDLANE_AGAIN) s = wakeups_.await_sampler(error);
    if (s != FEEDLANE_OK || has_none) break;
    (void)order_->add_drawn(ledger_);
  }
  assign_pending();
  balance();
  return s;
}

void Dispatcher::feed(bool may_hold) {
  struct Holding {
    bool& flag;
    ~Holding() { flag = false; }
  } const holding{may_hold_};
  may_hold_ = may_hold;
  Error error;
  const Status s = dispatch(error);
  if (s != FEEDLANE_OK) sampler_error_ = std::move(error);
}

void Dispatcher::abandon_epoch(bool has_workers, Staging* staging) {
  // Relaxed: workers read it only to save work.
  if (has_workers) memory_.segments.trainer_block()->abandon_before.store(ledger_.next_id(), std::memory_order_relaxed);
  ledger_.abandon_all(has_workers, [&](std::uint32_t slot) {
    if (staging != nullptr) staging->drop(slot);
    memory_.slots.put_back(slot);
  });
  if (const auto slot = order_->drop_drawn()) memory_.slots.put_back(*slot);
  sampler_error_ = {};
  any_stranded_ = false;
}

bool Dispatcher::has_work() const {
  return can_draw() || (any_stranded_ && memory_.slots.free() > free_when_stranded_);
}

bool Dispatcher::is_work_left() const { return has_begun_ && !(order_->is_exhausted() && ledger_.in_flight() == 0); }

bool Dispatcher::look() {
  const std::uint64_t long_ago = std::uint64_t{4} * ledger_.slots();
  if (ledger_.next_id() - looked_at_ < long_ago) return false;
  looked_at_ = ledger_.next_id();
  const auto members = roster_.members();
  // One that is on its way has no task while others are ready.
  bool is_overdue = std::any_of(members.begin(), members.end(), [](const Member& m) { return m.peer.is_on_its_way(); });
  bool has_trimmed = false;  // one slot is enough for one call of `next`
  for (std::uint32_t slot = 0; slot < ledger_.slots(); slot++) {
    const Entry& e = ledger_.at(slot);
    const std::uint64_t age = looked_at_ - e.id;
    if (e.is_out()) is_overdue = is_overdue || age >= long_ago;
    else if (!has_trimmed && age >= 16 * long_ago && memory_.slots.is_free(slot))
      has_trimmed = memory_.slot_memory.trim(slot, e.id);
  }
  return is_overdue;
}

// ---- sending ----

void Dispatcher::engage_all() {
  choice_.note_all();
  choice_.engagement().choose_all(roster_);
  if (ledger_.pending() != 0) send_pending();
  balance();  // tasks may wait for one of the few that has a long one
}

void Dispatcher::assign_pending() {
  if (ledger_.pending() == 0) return;
  if (!binds_) choice_.engagement().choose(stamps_.pace(), stamps_.now_ns(), roster_);
  send_pending();
}

void Dispatcher::send_pending() {
  choice_.hold(may_hold_ && !binds_ && stamps_.pace().is_short() && 2 * ledger_.pending() <= prefetch_.window());
  slot_error_.code = FEEDLANE_OK;
  bool is_full = false;
  ledger_.for_each_pending([&](const Entry& entry) {
    if (order_->settle(entry, ledger_)) return;
    const bool is_free = entry.home == Entry::anyone && entry.avoid == Entry::anyone;
    if (is_free && is_full) return;
    const std::uint32_t w = choice_.choose(entry);
    if (w == Entry::anyone) {
      is_full = is_full || is_free;
      return;
    }
    if (memory_.slot_memory.restore(entry.slot, slot_error_) != FEEDLANE_OK) return;  // it stays pending; `next` tells
    supervisor::TaskRing& tasks = roster_.at(w).peer.tasks();
    const std::uint64_t id = ledger_.send(entry.slot, w);
    stamps_.on_send(entry, order_->epoch(), w);
    tasks.send(order_->message_for(entry, id));
    if (config_.has_task_timeout() && tasks.unfinished() == 1) roster_.at(w).note_progress(os::now_ns());
    choice_.note(w);
    if (!roster_.at(w).is_to_ring) to_ring_.push_back(w);
    roster_.at(w).is_to_ring = true;
  });
  // One fence and at most one wake-up for all new tasks of a worker.
  for (const std::uint32_t w : to_ring_) {
    roster_.at(w).peer.tasks().ring_doorbell();
    roster_.at(w).is_to_ring = false;
  }
  to_ring_.clear();
}

// ---- taking back ----

namespace {

// Number of tasks that can be taken back. A ready worker keeps its first task, which it has begun or is about to begin.
// A worker that has not attached, or is opening its data set, keeps none, because that may take long.
std::uint32_t waiting_tasks(const Member& m) {
  const std::uint32_t unfinished = m.peer.tasks().unfinished();
  if (!m.peer.is_live() || unfinished == 0) return 0;
  return m.peer.state() == supervisor::State::ready ? unfinished - 1 : unfinished;
}

bool is_idle(const Member& m) {
  return m.peer.has_attached() && m.peer.is_live() && m.peer.tasks().unfinished() == 0 &&
         m.peer.tasks().revoked() == 0 && m.peer.state() == supervisor::State::ready;
}

}  // namespace

// If a worker is idle while tasks wait for a busy worker, or for one that is still starting, takes these tasks back and
// sends them again. With round-robin dispatch each batch waits for its own worker.
void Dispatcher::balance() {
  const auto members = roster_.members();
  if (config_.round_robin || ledger_.pending() != 0 || members.size() < 2) return;
  if (engaged() < members.size() || !choice_.is_uneven()) return;
  if (may_hold_ && stamps_.pace().is_short()) return;
  if (std::none_of(members.begin(), members.end(), is_idle)) return;
  const auto has_less = [](const Member& a, const Member& b) { return waiting_tasks(a) < waiting_tasks(b); };
  const auto most =
      static_cast<std::uint32_t>(std::max_element(members.begin(), members.end(), has_less) - members.begin());
  bool any = take_back_from(most);
  // If there are abandoned tasks, all tasks of that worker may be abandoned.
  for (std::uint32_t w = 0; !any && ledger_.abandoned() != 0 && w < roster_.size(); w++)
    any = w != most && take_back_from(w);
  if (any) assign_pending();
}

// Takes back the tasks that the worker has not begun; if it is stuck, also abandoned ones. False: there are none.
bool Dispatcher::take_back_from(std::uint32_t w) {
  Member& m = roster_.at(w);
  supervisor::TaskRing& tasks = m.peer.tasks();
  if (!m.is_stuck && waiting_tasks(m) == 0) return false;
  const std::uint64_t begun = tasks.begun_through();
  const std::uint64_t oldest = ledger_.oldest_of(w);
  queued_.clear();
  for (std::uint32_t slot = 0; slot < ledger_.slots(); slot++) {
    const Entry& e = ledger_.at(slot);
    if (e.is_out() && e.worker == w && e.id > begun && (e.state == State::sent || m.is_stuck))
      queued_.emplace_back(e.id, slot);
  }
  std::sort(queued_.begin(), queued_.end());
  // A worker without a task in hand is about to begin one, and the trainer would not learn when.
  const bool is_at_work = m.peer.state() == supervisor::State::ready && !m.is_stuck;
  if (is_at_work && !queued_.empty() && oldest == queued_.front().first) queued_.erase(queued_.begin());
  if (queued_.empty()) return false;
  queued_ids_.clear();
  for (const auto& [id, slot] : queued_) queued_ids_.push_back(id);
  const std::size_t kept = tasks.revoke(queued_ids_, oldest);
  choice_.note(w);
  for (std::size_t i = kept; i < queued_.size(); i++) {
    const std::uint32_t slot = queued_[i].second;
    if (ledger_.at(slot).state == State::abandoned) {
      ledger_.retire(slot);
      memory_.slots.put_back(slot);
    } else {
      ledger_.requeue(slot, w);
    }
  }
  return kept < queued_.size();
}

}  // namespace feedlane::loader
