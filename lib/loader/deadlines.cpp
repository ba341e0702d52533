// SPDX-License-Identifier: Apache-2.0
// What must have happened by when: workers attach, get on with their tasks, and end when they say so.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "loader/loader.hpp"
#include "os/other_process.hpp"
#include "shm/words.hpp"

namespace feedlane::loader {

using worker::Peer;

// How often in a row a worker that doesn't get on may have its time begin anew because the trainer was away.
constexpr std::uint32_t most_excuses = 8;

os::Deadline Loader::next_deadline() const {
  os::Deadline first = copier_deadline_;
  for (const Peer& p : peers_) {
    if (p.is_on_its_way()) first = first.earlier(os::Deadline::at(p.start_deadline_ns()));
    first = first.earlier(p.end_deadline());
    if (p.start_again_ns != 0) first = first.earlier(os::Deadline::at(p.start_again_ns));
    if (has_task_deadline(p)) first = first.earlier(os::Deadline::at(task_deadline_ns(p)));
    if (p.killed_ns() != 0 && !p.is_fenced)
      first = first.earlier(os::Deadline::at(p.killed_ns() + patience_with_death_ns));
  }
  return first;
}

// Judged by the time of the last look, which is when the workers' words were read: whoever is stopped after it, together
// with the trainer, isn't late.
void Loader::check_deadlines() {
  const std::int64_t now = last_look_ns_;
  for (std::uint32_t w = 0; w < peers_.size(); w++) {
    Peer& peer = peers_[w];
    if (peer.start_again_ns != 0 && peer.start_again_ns <= now) replace_at_last(w);
    else if (peer.is_on_its_way() && peer.start_deadline_ns() <= now) give_up_start(w);
    else if (peer.end_deadline().remaining_ns() == 0) peer.hurry(config_.term_timeout_ns);
    else if (has_task_deadline(peer) && task_deadline_ns(peer) <= now) give_up_task(w);
    else if (peer.killed_ns() != 0 && !peer.is_fenced && peer.killed_ns() + patience_with_death_ns <= now)
      fence_undead(w);
  }
}

// ---- absences ----

// A trainer that waits for a deadline looks so often: by then it knows whether it ran meanwhile.
std::int64_t Loader::look_every_ns() const {
  return (config_.has_task_timeout() ? std::min(config_.task_timeout_ns, config_.start_timeout_ns)
                                     : config_.start_timeout_ns) /
         4;
}

os::Deadline Loader::next_look() const {
  const auto is_watched = [this](const Peer& p) {
    return has_task_deadline(p) || (p.is_on_its_way() && p.start_deadline_ns() != FEEDLANE_FOREVER);
  };
  const bool any = std::any_of(peers_.begin(), peers_.end(), is_watched);
  return any && look_every_ns() < FEEDLANE_FOREVER / 8 ? os::Deadline::at(last_look_ns_ + look_every_ns())
                                                       : os::Deadline::never();
}

// A trainer that hasn't looked for half of a deadline was stopped, perhaps, or got no processor, and its workers too: their
// time begins anew. What is shorter leaves them the other half.
void Loader::look() {
  const std::int64_t now = os::now_ns();
  const std::int64_t absence = now - std::exchange(last_look_ns_, now);
  if (absence <= 2 * look_every_ns()) return;
  for (Peer& p : peers_) excuse(p, absence);
}

// It may as well have worked all the time, as a trainer that is busy elsewhere has its workers do. So not without end.
void Loader::excuse(Peer& peer, std::int64_t absence_ns) {
  if (peer.excused >= most_excuses) return;
  if (has_task_deadline(peer) && absence_ns > config_.task_timeout_ns / 2) {
    peer.progress_ns = last_look_ns_;
  } else if (peer.is_on_its_way() && peer.start_deadline_ns() != FEEDLANE_FOREVER &&
             absence_ns > config_.start_timeout_ns / 2) {
    peer.set_start_deadline_ns(last_look_ns_ + config_.start_timeout_ns);
  } else {
    return;
  }
  peer.excused++;
}

// ---- starting ----

// Who has no deadline for tasks has none for opening its data set either, which may take long.
std::int64_t Loader::open_deadline_ns() const {
  const bool has_one = config_.has_task_timeout() && config_.start_timeout_ns < FEEDLANE_FOREVER / 2;
  return has_one ? os::now_ns() + config_.start_timeout_ns : FEEDLANE_FOREVER;
}

// Where others go on it costs no more than a worker that dies: it is replaced.
void Loader::give_up_start(std::uint32_t w) {
  Peer& peer = peers_[w];
  const bool goes_on = others_go_on(w);
  peer.was_late = true;
  peer.set_start_deadline_ns(FEEDLANE_FOREVER);
  if (config_.starts_workers() || peer.has_attached()) {
    (void)unheard_.refuse(FEEDLANE_E_HUNG, "config.start_timeout_ns", config_.start_timeout_ns,
                          config_.start_timeout_ns, "worker %u (pid %d) has not %s within %lld ms", w,
                          static_cast<int>(peer.pid()), peer.has_attached() ? "opened its data set" : "attached",
                          static_cast<long long>(config_.start_timeout_ns / 1'000'000));
    unheard_.worker = static_cast<std::int32_t>(w);
    peer.refusal = unheard_;
    if (goes_on || config_.start == FEEDLANE_START_EXTERNAL) events_.push(FEEDLANE_EVENT_WORKER_HUNG, unheard_);
    else fail(unheard_);
  }
  if (peer.is_local()) {  // it can't be ended
    if (goes_on) fence(w);
    return;
  }
  if (config_.starts_workers() && !goes_on) peer.set_state(worker::State::failed);
  if (peer.has_process()) peer.cut_off(poller_);
  else lose(w);
}

// ---- tasks ----

bool Loader::has_task_deadline(const Peer& p) const {
  return config_.has_task_timeout() && p.state() == worker::State::ready && p.is_live() && p.unfinished != 0 &&
         !p.is_fenced;
}

// From the last sign of life: a task was sent to an idle worker, another was begun, or one was answered; or from the end of
// an absence. What the worker itself says of when it began isn't needed.
std::int64_t Loader::task_deadline_ns(const Peer& p) const {
  const std::int64_t timeout = config_.task_timeout_ns;
  return p.progress_ns > FEEDLANE_FOREVER - timeout ? FEEDLANE_FOREVER : p.progress_ns + timeout;
}

// Named, ended, and observed dead before its tasks go to others.
void Loader::give_up_task(std::uint32_t w) {
  Peer& peer = peers_[w];
  const std::int64_t now = last_look_ns_;
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

// ---- those that can't be ended ----

// A thread can't be ended, and a process that SIGKILL doesn't end is stuck in the kernel; either may write on. The slot of
// what it has in hand is lost until it answers or dies. That batch goes to others in another slot, as soon as there is one;
// what it hasn't begun is taken back.
void Loader::fence(std::uint32_t w) {
  fenced_++;
  peers_[w].is_fenced = true;
  if (config_.iterable) lose_hung_shard(w);
  (void)take_back_from(w);
  rescue_stranded();
  assign_pending();
}

void Loader::unfence(std::uint32_t w) {
  fenced_--;
  peers_[w].is_fenced = false;
}

// Sent SIGKILL long ago, and still there: in uninterruptible sleep on a disk or network that doesn't answer, or frozen. Its
// rings and its row are its own until its pidfd says that it is gone, so nobody takes its place till then.
void Loader::fence_undead(std::uint32_t w) {
  drain_lane(w);  // what it committed counts
  Peer& peer = peers_[w];
  const std::int64_t for_ns = os::now_ns() - peer.killed_ns();
  Record* blamed = ledger_.find(peer.refused_task != 0 ? peer.refused_task : peer.started_task(), w);
  if (blamed != nullptr && blamed->state != Record::State::sent) blamed = nullptr;
  if (blamed != nullptr) blamed->kills++;  // as good as dead: a batch that does this to each worker ends here
  (void)unheard_.refuse(FEEDLANE_E_HUNG, "worker", for_ns, patience_with_death_ns,
                        "worker %u (pid %d) is still there %lld ms after SIGKILL: %s", w, static_cast<int>(peer.pid()),
                        static_cast<long long>(for_ns / 1'000'000), os::describe_process(peer.pid()).c_str());
  unheard_.worker = static_cast<std::int32_t>(w);
  unheard_.epoch = blamed != nullptr ? epoch_ : -1;
  unheard_.batch = blamed != nullptr ? blamed->batch : -1;
  events_.push(FEEDLANE_EVENT_WORKER_HUNG, unheard_);
  fence(w);
}

// How many slots they keep that nobody else waits for.
std::uint32_t Loader::kept_by_fenced() const {
  std::uint32_t kept = 0;
  for (std::uint32_t slot = 0; fenced_ != 0 && slot < ledger_.slots(); slot++) {
    const Record& r = ledger_.at(slot);
    if (r.state == Record::State::abandoned && peers_[r.worker].is_fenced) kept++;
  }
  return kept;
}

// In their hands: nobody else can go on with it. Told once, in the place of its next batch.
void Loader::lose_hung_shard(std::uint32_t w) {
  if (w >= shards_.size() || shards_[w].exhausted) return;
  Shard& shard = shards_[w];
  shard.exhausted = true;
  const char* what = peers_[w].is_local() ? "a thread, hangs" : "a process that SIGKILL doesn't end, is still there";
  (void)shard.loss.refuse(FEEDLANE_E_HUNG, "config.task_timeout_ns", config_.task_timeout_ns, config_.task_timeout_ns,
                          "worker %u, %s: the rest of its shard is lost for this epoch", w, what);
  shard.loss.worker = static_cast<std::int32_t>(w);
  shard.loss.epoch = epoch_;
}

// What they have in hand goes on in other slots: the oldest first. The last free one is for the batch that all others wait
// for, though its worker may not be fenced yet.
void Loader::rescue_stranded() {
  any_stranded_ = false;
  queued_.clear();
  std::uint32_t oldest = Record::anyone;
  ledger_.for_each_in_order([&](std::uint32_t slot) {
    if (oldest == Record::anyone) oldest = slot;
    const Record& r = ledger_.at(slot);
    if (r.state == Record::State::sent && peers_[r.worker].is_fenced) queued_.emplace_back(r.id, slot);
  });
  for (const auto& [id, slot] : queued_) {
    const bool may_take_last = slot == oldest || config_.out_of_order;
    free_when_stranded_ = slots_.free();
    if (free_when_stranded_ > (may_take_last ? 0 : 1) && rescue(slot)) continue;
    any_stranded_ = true;
    return;
  }
}

// False: there is no slot to go on in.
bool Loader::rescue(std::uint32_t slot) {
  std::uint32_t other = 0;
  if (!slots_.take(other)) return false;
  const std::uint32_t w = ledger_.at(slot).worker;
  std::copy_n(segments_.index_list(slot), ledger_.at(slot).rows, segments_.index_list(other));
  ledger_.move(slot, other);
  abandoned_++;
  Record& r = ledger_.at(other);
  r.home = config_.iterable ? w : Record::anyone;
  if (r.kills < config_.max_kills_per_batch) {
    pending_++;
    shm::add(counters_->redispatched);
  } else {
    quarantine(w, other);
  }
  return true;
}

bool Loader::is_left_to_fenced() const {
  if (fenced_ == 0) return false;
  Error unasked;
  return hung_obstacle(unasked) != FEEDLANE_OK;
}

// What only those that are fenced could get on with.
Status Loader::hung_obstacle(Error& error) const {
  const auto may_answer = [](const Peer& p) { return !p.is_fenced && p.unfinished != 0; };
  const bool may_come_back = any_release_pending();  // looked at before the slots are counted, as in `obstacle`
  const bool is_waiting = any_stranded_ || (ledger_.in_flight() == 0 && !exhausted_ && abandoned_ == kept_by_fenced());
  if (!may_come_back && is_waiting && slots_.free() == 0 && std::none_of(peers_.begin(), peers_.end(), may_answer)) {
    if (held() > config_.held)
      return error.refuse(FEEDLANE_SLOTS_HELD, "config.held", held(), config_.held,
                          "the trainer holds %u batches, and what a hung worker had in hand needs a slot", held());
    return error.refuse(FEEDLANE_E_HUNG, "config.arena_bytes", slots_.size(), slots_.size() + fenced_,
                        "of the %u slots, %u workers that hang keep theirs, the rest waits for their batches: no slot "
                        "is left for those",
                        slots_.size(), fenced_);
  }
  // Whoever starts, or will be started, may go on.
  const auto is_out = [](const Peer& p) { return p.is_fenced || p.state() == worker::State::none; };
  const bool may_come = config_.start != FEEDLANE_START_EXTERNAL && fenced_ < peers_.size();
  if (pending_ == 0 || may_come || !std::all_of(peers_.begin(), peers_.end(), is_out)) return FEEDLANE_OK;
  const auto workers = static_cast<std::int64_t>(peers_.size());
  const bool are_threads = config_.start == FEEDLANE_START_THREAD;
  if (fenced_ < peers_.size())
    return error.refuse(FEEDLANE_E_PEER_DEAD, "workers", 0, 1,
                        "%u of %lld workers can't be ended, and no other is attached or offered: "
                        "feedlane_loader_open_worker",
                        fenced_, static_cast<long long>(workers));
  return error.refuse(FEEDLANE_E_HUNG, are_threads ? "config.task_timeout_ns" : "worker", workers, workers,
                      are_threads ? "all %lld threads hang: nobody is left to make the batches"
                                  : "none of the %lld workers could be ended by SIGKILL: nobody is left to make the "
                                    "batches, until one is gone",
                      static_cast<long long>(workers));
}

}  // namespace feedlane::loader
