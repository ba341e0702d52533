// SPDX-License-Identifier: Apache-2.0
// What must have happened by when: workers attach, get on with their tasks, and end when they say so.
#include <algorithm>
#include <cstdio>
#include <string>

#include "loader/loader.hpp"
#include "os/other_process.hpp"
#include "shm/words.hpp"

namespace feedlane::loader {

using worker::Peer;

constexpr std::int64_t longest_grace_ns = 100'000'000;

os::Deadline Loader::next_deadline() const {
  os::Deadline first = copier_deadline_;
  for (const Peer& p : peers_) {
    if (p.is_on_its_way()) first = first.earlier(os::Deadline::at(p.start_deadline_ns()));
    first = first.earlier(p.end_deadline());
    if (p.start_again_ns != 0) first = first.earlier(os::Deadline::at(p.start_again_ns));
    if (has_task_deadline(p)) first = first.earlier(os::Deadline::at(task_deadline_ns(p)));
  }
  return first;
}

void Loader::check_deadlines() {
  const std::int64_t now = os::now_ns();
  for (std::uint32_t w = 0; w < peers_.size(); w++) {
    Peer& peer = peers_[w];
    if (peer.start_again_ns != 0 && peer.start_again_ns <= now) replace_at_last(w);
    else if (peer.is_on_its_way() && peer.start_deadline_ns() <= now) give_up_start(w);
    else if (peer.end_deadline().remaining_ns() == 0) peer.hurry(config_.term_timeout_ns);
    else if (has_task_deadline(peer) && task_deadline_ns(peer) <= now) give_up_task(w, now);
  }
}

// Who has no deadline for tasks has none for opening its data set either, which may take long.
std::int64_t Loader::open_deadline_ns() const {
  const bool has_one = config_.has_task_timeout() && config_.start_timeout_ns < FEEDLANE_FOREVER / 2;
  return has_one ? os::now_ns() + config_.start_timeout_ns : FEEDLANE_FOREVER;
}

void Loader::give_up_start(std::uint32_t w) {
  Peer& peer = peers_[w];
  peer.set_start_deadline_ns(FEEDLANE_FOREVER);
  if (config_.starts_workers() || peer.has_attached()) {
    (void)unheard_.refuse(FEEDLANE_E_HUNG, "config.start_timeout_ns", config_.start_timeout_ns,
                          config_.start_timeout_ns, "worker %u (pid %d) has not %s within %lld ms", w,
                          static_cast<int>(peer.pid()), peer.has_attached() ? "opened its data set" : "attached",
                          static_cast<long long>(config_.start_timeout_ns / 1'000'000));
    unheard_.worker = static_cast<std::int32_t>(w);
    if (config_.start == FEEDLANE_START_EXTERNAL) events_.push(FEEDLANE_EVENT_WORKER_HUNG, unheard_);
    else fail(unheard_);
  }
  if (peer.is_local()) return;  // it can't be ended
  if (config_.starts_workers()) peer.set_state(worker::State::failed);
  if (peer.has_process()) peer.cut_off(poller_);
  else lose(w);
}

// ---- tasks ----

bool Loader::has_task_deadline(const Peer& p) const {
  return config_.has_task_timeout() && p.state() == worker::State::ready && p.is_live() && p.unfinished != 0 &&
         !p.is_fenced;
}

// From the last sign of life: a task was sent to an idle worker, another was begun, or one was answered. What the worker
// itself says of when it began isn't needed.
std::int64_t Loader::task_deadline_ns(const Peer& p) const {
  const std::int64_t timeout = config_.task_timeout_ns;
  const std::int64_t since =
      std::max(p.progress_ns, watching_since_ns_ - timeout + std::min(timeout, longest_grace_ns));
  return since > FEEDLANE_FOREVER - timeout ? FEEDLANE_FOREVER : since + timeout;
}

// To sleep is to look. Who slept much longer than it meant to was stopped, or got no processor, and its workers probably
// too: their time begins anew.
void Loader::look_again(std::int64_t slept_ns, std::int64_t meant_ns) {
  if (!config_.has_task_timeout()) return;
  const std::int64_t now = os::now_ns();
  last_look_ns_ = now;
  if (slept_ns - meant_ns <= std::min(config_.task_timeout_ns, longest_grace_ns)) return;
  for (Peer& p : peers_) p.progress_ns = now;
}

// Named, ended, and observed dead before its tasks go to others.
void Loader::give_up_task(std::uint32_t w, std::int64_t now) {
  Peer& peer = peers_[w];
  const std::uint64_t begun = peer.started_task();
  const std::int64_t for_ms = (now - peer.progress_ns) / 1'000'000;
  std::int64_t batch = -1;
  std::int64_t sample = -1;
  for (std::uint32_t slot = 0; slot < ledger_.slots(); slot++) {
    const Record& r = ledger_.at(slot);
    if (r.state != Record::State::sent || r.worker != w || r.id != begun) continue;
    batch = r.batch;
    const std::uint64_t row = segments_.worker_row(w)->started_sample.load(std::memory_order_relaxed);  // a hint
    if (!config_.iterable && row < r.rows) sample = segments_.index_list(slot)[row];
  }
  const std::string where = peer.is_local() ? "a thread" : os::describe_process(peer.pid());
  (void)unheard_.refuse(FEEDLANE_E_HUNG, "config.task_timeout_ns", now - peer.progress_ns, config_.task_timeout_ns,
                        "worker %u (pid %d) has not got on for %lld ms with batch %lld, sample %lld: %s", w,
                        static_cast<int>(peer.pid()), static_cast<long long>(for_ms), static_cast<long long>(batch),
                        static_cast<long long>(sample), where.c_str());
  unheard_.worker = static_cast<std::int32_t>(w);
  unheard_.epoch = epoch_;
  unheard_.batch = batch;
  unheard_.sample = sample;
  events_.push(FEEDLANE_EVENT_WORKER_HUNG, unheard_);
  shm::add(counters_->hung);
  if (peer.is_local()) return fence(w);
  peer.cut_off(poller_);
}

// A thread can't be ended, and may write on: the slot of what it has in hand is lost until it answers. That batch goes to
// others in another slot, as soon as there is one; what it hasn't begun is taken back.
void Loader::fence(std::uint32_t w) {
  peers_[w].is_fenced = true;
  if (config_.iterable) lose_hung_shard(w);
  (void)take_back_from(w);
  rescue_stranded();
}

// In the thread's hands: nobody else can go on with it. Told once, in the place of its next batch.
void Loader::lose_hung_shard(std::uint32_t w) {
  Shard& shard = shards_[w];
  if (shard.exhausted) return;
  shard.exhausted = true;
  (void)shard.loss.refuse(FEEDLANE_E_HUNG, "config.task_timeout_ns", config_.task_timeout_ns, config_.task_timeout_ns,
                          "worker %u, a thread, hangs: the rest of its shard is lost for this epoch", w);
  shard.loss.worker = static_cast<std::int32_t>(w);
  shard.loss.epoch = epoch_;
}

// What hung threads have in hand goes on in other slots.
void Loader::rescue_stranded() {
  any_stranded_ = false;
  for (std::uint32_t slot = 0; slot < ledger_.slots(); slot++) {
    const Record& r = ledger_.at(slot);
    if (r.state != Record::State::sent || !peers_[r.worker].is_fenced) continue;
    std::uint32_t other = 0;
    if (!slots_.take(other)) {
      any_stranded_ = true;
      return;
    }
    std::copy_n(segments_.index_list(slot), r.rows, segments_.index_list(other));
    ledger_.move(slot, other);
    ledger_.at(other).home = config_.iterable ? r.worker : Record::anyone;
    abandoned_++;
    pending_++;
    shm::add(counters_->redispatched);
  }
}

// What only threads that hang could get on with.
Status Loader::hung_obstacle(Error& error) const {
  const auto is_fenced = [](const Peer& p) { return p.is_fenced; };
  const auto works = [](const Peer& p) { return p.has_attached() && !p.is_fenced && p.unfinished != 0; };
  const auto workers = static_cast<std::int64_t>(peers_.size());
  if (any_stranded_ && slots_.free() == 0 && std::none_of(peers_.begin(), peers_.end(), works)) {
    if (held() > config_.held)
      return error.refuse(FEEDLANE_SLOTS_HELD, "config.held", held(), config_.held,
                          "the trainer holds %u batches, and what a hung thread had in hand needs a slot", held());
    return error.refuse(FEEDLANE_E_HUNG, "config.arena_bytes", slots_.size(), slots_.size() + workers,
                        "a hung thread has one of the %u slots, the rest waits for its batch: no slot is left for it",
                        slots_.size());
  }
  if (pending_ == 0 || !std::all_of(peers_.begin(), peers_.end(), is_fenced)) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_HUNG, "config.task_timeout_ns", workers, workers,
                      "all %lld threads hang: nobody is left to make the batches", static_cast<long long>(workers));
}

}  // namespace feedlane::loader
