// SPDX-License-Identifier: Apache-2.0
// Workers: start, hear, lose, replace.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <new>
#include <utility>

#include "loader/loader.hpp"
#include "os/event.hpp"

namespace feedlane::loader {

using worker::Peer;
using worker::Tag;

// Generations in a row that may end before they attach: a program that is no worker ends at once, every time.
constexpr std::uint32_t max_start_failures = 5;
// A worker that can't be replaced for want of something is tried again this often.
constexpr std::int64_t start_again_every_ns = 100'000'000;

bool Loader::any_ending() const {
  for (const Peer& p : peers_)
    if (p.is_ending() && !p.is_undead()) return true;
  return false;
}

bool Loader::any_there() const {
  for (const Peer& p : peers_)
    if (p.state() != worker::State::none && !p.is_undead()) return true;
  return false;
}

// Another one has attached and takes tasks, or will when its data set is open: if none of its kind was given up before that,
// or two that never open would be replaced in turn for ever.
bool Loader::others_go_on(std::uint32_t w) const {
  for (const Peer& p : peers_) {
    const bool may_open = p.state() == worker::State::ready || !p.was_late;
    if (&p != &peers_[w] && p.has_attached() && p.is_live() && !p.is_fenced && may_open) return true;
  }
  return false;
}

void Loader::fail(const Error& error) {
  if (failure_.code == FEEDLANE_OK) failure_ = error;
}

// ---- starting ----

Status Loader::open_channel(std::uint32_t w, os::Fd& theirs, Error& error) {
  // Threads come when they like.
  const bool has_deadline = config_.start_timeout_ns < FEEDLANE_FOREVER / 2 && config_.start != FEEDLANE_START_THREAD;
  const std::int64_t at = has_deadline ? os::now_ns() + config_.start_timeout_ns : FEEDLANE_FOREVER;
  const Status s =
      peers_[w].open(segments_, lanes_.prepare(w), epoch_, config_.lifeline, self_.get(), at, poller_, theirs, error);
  if (s == FEEDLANE_OK && std::exchange(peers_[w].died, false)) shm::add(counters_->restarts);
  return s;
}

Status Loader::start(std::uint32_t w, Error& error) {
  os::Fd theirs;
  Status s = open_channel(w, theirs, error);
  if (s != FEEDLANE_OK) {
    error.worker = static_cast<std::int32_t>(w);
    return s;
  }
  if (config_.start == FEEDLANE_START_THREAD) {
    peers_[w].expect_local();
    const std::lock_guard lock(offers_mutex_);
    offers_.push_back(std::move(theirs));
    return FEEDLANE_OK;
  }
  s = config_.start == FEEDLANE_START_FORK
          ? start_forked(w, std::move(theirs), error)
          : peers_[w].spawn({config_.argv, config_.environment}, std::move(theirs), poller_, error);
  if (s != FEEDLANE_OK) {
    error.worker = static_cast<std::int32_t>(w);
    lanes_.close(w);  // whatever it was that ran
  }
  return s;
}

// In place of one that died. Too little memory is a failure to start like any other.
Status Loader::start_again(std::uint32_t w, Error& error) {
  try {
    return start(w, error);
  } catch (const std::bad_alloc&) {
    lanes_.close(w);
    peers_[w].close(poller_);
    return error.fail(FEEDLANE_E_MEMORY, "worker %u can't be started: out of memory", w);
  }
}

Status Loader::start_forked(std::uint32_t w, os::Fd theirs, Error& error) {
  bool is_child = false;
  const Status s = peers_[w].fork(poller_, is_child, error);
  if (!is_child) return s;
  // From here on this is the worker. The writable view of control didn't come along (MADV_DONTFORK); what else is the
  // trainer's alone goes before a line of the user's runs.
  for (Peer& p : peers_) p.close_in_child();
  poller_ = {};
  wake_event_.reset();
  timer_.reset();
  self_.reset();
  ::_exit(forked_main_(theirs.release(), config_.table, segments_));
}

Status Loader::start_missing(Error& error) {
  if (config_.start == FEEDLANE_START_EXTERNAL) return FEEDLANE_OK;
  for (std::uint32_t w = 0; w < peers_.size(); w++) {
    peers_[w].was_late = false;
    if (peers_[w].state() != worker::State::none) continue;
    peers_[w].start_failures = 0;
    if (const Status s = start(w, error); s != FEEDLANE_OK) return s;
  }
  return FEEDLANE_OK;
}

Status Loader::take_offer(os::Fd& fd, Error& error) {
  if (config_.workers == 0 || config_.start != FEEDLANE_START_THREAD)
    return error.refuse(FEEDLANE_E_STATE, "config.start", config_.start, FEEDLANE_START_THREAD,
                        "only for FEEDLANE_START_THREAD");
  const std::lock_guard lock(offers_mutex_);
  if (offers_.empty()) return FEEDLANE_END;
  fd = std::move(offers_.front());
  offers_.erase(offers_.begin());
  return FEEDLANE_OK;
}

Status Loader::open_worker(std::int32_t& id, os::Fd& fd, Error& error) {
  if (config_.workers == 0 || config_.start != FEEDLANE_START_EXTERNAL)
    return error.refuse(FEEDLANE_E_STATE, "config.start", config_.start, FEEDLANE_START_EXTERNAL,
                        "only for FEEDLANE_START_EXTERNAL");
  const auto count = static_cast<std::int32_t>(peers_.size());
  if (id < -1 || id >= count)
    return error.refuse(FEEDLANE_E_ARGUMENT, "id", id, count - 1, "worker %d of %d", id, count);
  Status s = take_news(error);  // of the dead first
  if (s != FEEDLANE_OK) return s;
  for (std::int32_t w = id < 0 ? 0 : id; w < (id < 0 ? count : id + 1); w++) {
    Peer& peer = peers_[static_cast<std::uint32_t>(w)];
    if (peer.state() != worker::State::none) continue;
    s = open_channel(static_cast<std::uint32_t>(w), fd, error);
    if (s != FEEDLANE_OK) return s;
    peer.expect_external();
    id = w;
    return FEEDLANE_OK;
  }
  if (id < 0) return FEEDLANE_END;
  return error.refuse(FEEDLANE_E_STATE, "id", id, -1, "worker %d is there already", id);
}

// ---- hearing ----

void Loader::handle(const os::Poller::Event& event) {
  if (event.tag == wake_tag) return os::drain_event(wake_event_.get());
  if (event.tag == timer_tag) return os::drain_event(timer_.get());
  const Tag tag = Tag::unpack(event.tag);
  Peer& peer = peers_[tag.worker];
  if (peer.state() == worker::State::none || peer.generation() != tag.generation) return;  // a predecessor's
  switch (tag.kind) {
    case Tag::doorbell: return;
    case Tag::socket: return hear(tag.worker);
    case Tag::process: return lose(tag.worker);
  }
}

// Its lane is open as soon as it has attached: until then nobody has anything to say there.
Peer::Heard Loader::listen(std::uint32_t w, Error& error) {
  const Peer::Heard heard = peers_[w].listen(poller_, error);
  if (heard == Peer::Heard::attached) {
    start_error_ = {};
    (void)lanes_.open(w);
    peers_[w].set_start_deadline_ns(open_deadline_ns());
  }
  return heard;
}

// One message; the poller tells of the next, so that a worker that floods its socket can't hold the trainer up.
void Loader::hear(std::uint32_t w) {
  Peer& peer = peers_[w];
  Error error;
  const Peer::Heard heard = listen(w, error);
  switch (heard) {
    case Peer::Heard::nothing: return;
    case Peer::Heard::attached: return assign_pending();
    case Peer::Heard::ready:
      peer.was_late = false;
      if (peer.is_fenced && peer.is_local()) unfence(w);  // a thread whose data set took too long to open
      return assign_pending();
    case Peer::Heard::cannot_open: return fail(error);
    case Peer::Heard::left:
      // It can't write any more. A process of somebody else may live on; one of ours is about to end, and how tells why.
      if (!peer.is_spawned()) return lose(w);
      if (peer.is_ending()) return peer.close_socket(poller_);
      return peer.let_leave(os::Deadline::after(config_.stop_timeout_ns), poller_);
    case Peer::Heard::hung_up:
      if (!peer.has_process()) return lose(w);  // an offer that nobody took
      return peer.is_ending() ? peer.close_socket(poller_) : peer.cut_off(poller_);
    case Peer::Heard::lost:  // not the worker's fault, but what it said won't come again
    case Peer::Heard::nonsense:
      if (heard == Peer::Heard::nonsense) shm::add(counters_->invalid_results);
      error.worker = static_cast<std::int32_t>(w);
      events_.push(heard == Peer::Heard::nonsense ? FEEDLANE_EVENT_INVALID : FEEDLANE_EVENT_WARNING, error);
      // A program of ours is started again, and told of when it never attaches; of somebody else's it costs the offer.
      if (peer.is_spawned() && !peer.has_attached() && heard == Peer::Heard::nonsense) peer.refusal = error;
      if (heard == Peer::Heard::lost && !peer.has_attached() && config_.start != FEEDLANE_START_EXTERNAL) {
        peer.was_unheard = true;
        start_error_ = error;
      }
      if (!peer.has_process()) return lose(w);
      return peer.cut_off(poller_);
  }
}

// ---- losing and replacing ----

// What a worker said before it died may not have been read yet: above all, why it could not open its data set.
void Loader::hear_last_words(std::uint32_t w) {
  Peer& peer = peers_[w];
  for (Peer::Heard heard = Peer::Heard::attached; heard == Peer::Heard::attached || heard == Peer::Heard::ready;) {
    Error error;
    heard = peer.has_socket() ? listen(w, error) : Peer::Heard::nothing;
    if (heard == Peer::Heard::cannot_open) fail(error);
  }
}

// The worker is observed gone: what it committed counts, the rest goes to others, and another takes its place.
void Loader::lose(std::uint32_t w) {
  Peer& peer = peers_[w];
  hear_last_words(w);
  const bool expected = stopping_ || peer.is_ending();
  const bool has_left = peer.has_left() && !peer.is_spawned();  // one of ours is about to end, and how tells why
  const bool had_attached = peer.has_attached();
  if (!peer.has_left() && !peer.is_local()) slot_memory_.doubt_all();
  const pid_t pid = peer.pid();
  const os::Ending ending = peer.reap();
  char how[64] = "ended";
  if (ending.known)
    (void)std::snprintf(how, sizeof how, ending.signaled ? "was killed by signal %d" : "exited with status %d",
                        ending.code);
  drain_lane(w);
  lanes_.close(w);
  const std::int64_t in_hand = take_back_tasks(w);
  recover_shard(w, how, pid);
  if (peer.was_cut_off() && peer.refused_task != 0)
    (void)std::snprintf(how, sizeof how, "was ended for saying what makes no sense");
  if (peer.is_fenced) unfence(w);
  peer.close(poller_);
  peer.died = !expected && !has_left && !peer.was_unheard;
  if (peer.died) tell_of_death(w, how, pid, in_hand);
  else if (!expected && config_.start == FEEDLANE_START_EXTERNAL) want_another(w, pid);
  if (!stopping_) restore_free_slots();
  if (!expected && (is_work_left() || config_.start == FEEDLANE_START_THREAD)) replace(w, had_attached, how, pid);
  assign_pending();
}

bool Loader::is_work_left() const { return begun_ && !(exhausted_ && ledger_.in_flight() == 0); }

void Loader::tell_of_death(std::uint32_t w, const char* how, pid_t pid, std::int64_t batch) {
  const char* const why = peers_[w].why_not_attached();
  (void)unheard_.fail(FEEDLANE_E_PEER_DEAD, "worker %u: process %d %s%s%.280s", w, static_cast<int>(pid), how,
                      *why == '\0' ? "" : " before it attached: ", why);
  unheard_.worker = static_cast<std::int32_t>(w);
  unheard_.epoch = batch < 0 ? -1 : epoch_;
  unheard_.batch = batch;
  events_.push(FEEDLANE_EVENT_WORKER_DIED, unheard_);
  if (config_.start == FEEDLANE_START_EXTERNAL) events_.push(FEEDLANE_EVENT_WORKER_WANTED, unheard_);
}

void Loader::want_another(std::uint32_t w, pid_t pid) {
  (void)unheard_.fail(FEEDLANE_OK, "worker %u: process %d has left", w, static_cast<int>(pid));
  unheard_.worker = static_cast<std::int32_t>(w);
  events_.push(FEEDLANE_EVENT_WORKER_WANTED, unheard_);
}

std::int64_t Loader::take_back_tasks(std::uint32_t w) {
  // A worker that was cut off is to blame for what it said, not for what it had in hand by then.
  const std::uint64_t blamed = peers_[w].refused_task != 0 ? peers_[w].refused_task : peers_[w].started_task();
  std::int64_t in_hand = -1;
  for (std::uint32_t slot = 0; slot < ledger_.slots(); slot++) {
    Record& r = ledger_.at(slot);
    if (r.worker != w) continue;
    if (r.state == Record::State::abandoned) {
      abandoned_--;
      r.state = Record::State::idle;
      slots_.put_back(slot);
    } else if (r.state == Record::State::sent) {
      if (r.id == blamed) {
        if (!peers_[w].is_undead()) r.kills++;  // else it was counted when it was fenced
        in_hand = r.batch;
      }
      if (r.kills < config_.max_kills_per_batch) {
        r.attempt++;
        r.avoid = Record::anyone;
        r.state = Record::State::pending;
        pending_++;
        shm::add(counters_->redispatched);
      } else {
        quarantine(w, slot);
      }
    }
  }
  return in_hand;
}

void Loader::quarantine(std::uint32_t w, std::uint32_t slot) {
  Record& r = ledger_.at(slot);
  char refusal[sizeof r.error.text + 32] = {};
  if (r.id == peers_[w].refused_task)
    (void)std::snprintf(refusal, sizeof refusal, "; the last one's result: %s", r.error.text);
  (void)r.error.refuse(FEEDLANE_E_QUARANTINED, "config.max_kills_per_batch", r.kills, config_.max_kills_per_batch,
                       "%u workers have ended with this batch in hand%s%s", r.kills,
                       config_.iterable ? "; what is left of their shard isn't tried any more" : "", refusal);
  r.error.worker = static_cast<std::int32_t>(w);
  r.error.epoch = epoch_;
  r.error.batch = r.batch;
  r.made.records.clear();
  if (config_.iterable) shards_[w].exhausted = true;  // every further task would stand at the same sample
  ledger_.finish(slot, Record::State::failed);
  shm::add(counters_->quarantined);
  events_.push(FEEDLANE_EVENT_QUARANTINED, r.error);
}

// The shard of a dead worker is opened again by the next one, which goes on behind what was committed: by the saved state,
// or by leaving out as many samples. A data set that promises neither would yield other samples: what is left is lost.
void Loader::recover_shard(std::uint32_t w, const char* how, pid_t pid) {
  if (!config_.iterable || shards_.empty()) return;
  Shard& shard = shards_[w];
  shard.fresh = true;
  if (shard.exhausted || shard.taken == 0 || shard.state != nullptr || config_.deterministic) return;
  shard.exhausted = true;
  (void)shard.loss.refuse(FEEDLANE_E_PEER_DEAD, "config.deterministic", 0, 1,
                          "worker %u: process %d %s after %llu samples of its shard, %s: the rest is lost", w,
                          static_cast<int>(pid), how, static_cast<unsigned long long>(shard.taken),
                          shard.lost_state
                              ? "its data set isn't deterministic, and its last batch failed, so that where it stands "
                                "wasn't saved"
                              : "and its data set is neither deterministic nor saves where it stands");
  shard.loss.worker = static_cast<std::int32_t>(w);
}

void Loader::tell_of_starts(std::uint32_t w, const char* how, pid_t pid, Error& error) const {
  const Peer& peer = peers_[w];
  char why[sizeof error.text];
  if (*peer.why_not_attached() != '\0') (void)std::snprintf(why, sizeof why, "%.280s", peer.why_not_attached());
  else
    (void)std::snprintf(why, sizeof why, "is %.200s a feedlane worker?",
                        config_.argv.empty() ? "it" : config_.argv[0].c_str());
  (void)error.refuse(FEEDLANE_E_INIT, "config.argv", peer.start_failures, max_start_failures,
                     "worker %u: process %d %s before it attached, the %uth in a row: %s", w, static_cast<int>(pid),
                     how, peer.start_failures, why);
}

void Loader::replace(std::uint32_t w, bool had_attached, const char* how, pid_t pid) {
  Peer& peer = peers_[w];
  if (config_.start == FEEDLANE_START_EXTERNAL) return;  // the host is asked for another by open_worker
  if (peer.was_unheard) {                                // it would be the same at once; it was told
    peer.start_again_ns = os::now_ns() + start_again_every_ns;
    return;
  }
  Error error;
  const std::uint64_t restarts = counters_->restarts.load(std::memory_order_relaxed);
  if (!had_attached && ++peer.start_failures >= max_start_failures) return give_up_place(w, how, pid);
  if (peer.died && restarts >= config_.max_restarts)
    (void)error.refuse(FEEDLANE_E_RESTARTS, "config.max_restarts", static_cast<std::int64_t>(restarts) + 1,
                       config_.max_restarts, "worker %u: process %d %s, and %llu workers have been replaced already", w,
                       static_cast<int>(pid), how, static_cast<unsigned long long>(restarts));
  else if (start_again(w, error) == FEEDLANE_OK) {
    (void)error.fail(FEEDLANE_OK, "worker %u: process %d replaces one that %s", w, static_cast<int>(peer.pid()), how);
    error.worker = static_cast<std::int32_t>(w);
    return events_.push(FEEDLANE_EVENT_WORKER_STARTED, error);
  } else {
    start_later(w, error);
    if (any_there()) events_.push(FEEDLANE_EVENT_WARNING, error);  // the others go on
    return;
  }
  error.worker = static_cast<std::int32_t>(w);
  fail(error);
}

// Its starts fail every time. The others go on without it, until the next epoch tries again.
void Loader::give_up_place(std::uint32_t w, const char* how, pid_t pid) {
  Peer& peer = peers_[w];
  Error error = peer.refusal;  // the last one's word, if that was what was wrong
  if (error.code == FEEDLANE_OK) tell_of_starts(w, how, pid, error);
  error.worker = static_cast<std::int32_t>(w);
  if (config_.iterable || !others_go_on(w)) return fail(error);  // a shard is nobody else's
  peer.was_given_up = true;
  events_.push(FEEDLANE_EVENT_WARNING, error);
}

// What is missing now may be there then.
void Loader::start_later(std::uint32_t w, Error& error) {
  error.worker = static_cast<std::int32_t>(w);
  peers_[w].start_again_ns = os::now_ns() + start_again_every_ns;
  if (!any_there()) start_error_ = error;
}

// What was missing may be there by now. The first failure was told; where nobody is there, every one is.
void Loader::replace_at_last(std::uint32_t w) {
  Peer& peer = peers_[w];
  Error error;
  if (!is_work_left()) {
    peer.start_again_ns = 0;  // the next begin starts it
  } else if (start_again(w, error) != FEEDLANE_OK) {
    start_later(w, error);
  } else {
    (void)error.fail(FEEDLANE_OK, "worker %u: process %d replaces one that could not be replaced at once", w,
                     static_cast<int>(peer.pid()));
    error.worker = static_cast<std::int32_t>(w);
    events_.push(FEEDLANE_EVENT_WORKER_STARTED, error);
    assign_pending();
  }
}

}  // namespace feedlane::loader
