// SPDX-License-Identifier: Apache-2.0
// Workers: start, hear, lose, replace, end.
#include <array>
#include <csignal>
#include <cstdio>

#include "loader/loader.hpp"
#include "os/event.hpp"

namespace feedlane::loader {

using worker::Peer;
using worker::Tag;

// Generations in a row that may end before they attach: a program that is no worker ends at once, every time.
constexpr std::uint32_t max_start_failures = 5;

bool Loader::any_there() const {
  for (const Peer& p : peers_)
    if (p.state() != worker::State::none) return true;
  return false;
}

void Loader::fail(const Error& error) {
  if (failure_.code == FEEDLANE_OK) failure_ = error;
}

// ---- starting ----

Status Loader::open_channel(std::uint32_t w, os::Fd& theirs, Error& error) {
  const os::Deadline deadline = os::Deadline::after(config_.start_timeout_ns);
  const std::int64_t at = deadline.is_never() ? FEEDLANE_FOREVER : os::now_ns() + config_.start_timeout_ns;
  const std::uint64_t start = lanes_.open(w);
  const Status s = peers_[w].open(segments_, start, self_.get(), at, poller_, theirs, error);
  if (s != FEEDLANE_OK) lanes_.close(w);
  return s;
}

Status Loader::start(std::uint32_t w, Error& error) {
  os::Fd theirs;
  if (const Status s = open_channel(w, theirs, error); s != FEEDLANE_OK) return s;
  const Status s = peers_[w].spawn({config_.argv, config_.environment}, std::move(theirs), poller_, error);
  if (s != FEEDLANE_OK) {
    error.worker = static_cast<std::int32_t>(w);
    lanes_.close(w);
  }
  return s;
}

Status Loader::start_missing(Error& error) {
  if (config_.external) return FEEDLANE_OK;
  for (std::uint32_t w = 0; w < peers_.size(); w++) {
    if (peers_[w].state() != worker::State::none) continue;
    peers_[w].start_failures = 0;
    if (const Status s = start(w, error); s != FEEDLANE_OK) return s;
  }
  return FEEDLANE_OK;
}

Status Loader::open_worker(std::int32_t& id, os::Fd& fd, Error& error) {
  if (!config_.external)
    return error.refuse(FEEDLANE_E_STATE, "config.start", FEEDLANE_START_SPAWN, FEEDLANE_START_EXTERNAL,
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
    if (peer.generation() > 0) Counters::add(counters_.restarts);
    id = w;
    return FEEDLANE_OK;
  }
  if (id < 0) return FEEDLANE_END;
  return error.refuse(FEEDLANE_E_STATE, "id", id, -1, "worker %d is there already", id);
}

os::Deadline Loader::next_start_deadline() const {
  os::Deadline first = os::Deadline::never();
  for (const Peer& p : peers_)
    if (p.state() == worker::State::starting) first = first.earlier(os::Deadline::at(p.start_deadline_ns()));
  return first;
}

void Loader::check_start_deadlines() {
  const std::int64_t now = os::now_ns();
  for (std::uint32_t w = 0; w < peers_.size(); w++) {
    Peer& peer = peers_[w];
    if (peer.state() != worker::State::starting || peer.start_deadline_ns() > now) continue;
    if (!config_.external) {
      (void)unheard_.refuse(FEEDLANE_E_HUNG, "config.start_timeout_ns", config_.start_timeout_ns,
                            config_.start_timeout_ns, "worker %u (pid %d) has not attached within %lld ms", w,
                            static_cast<int>(peer.pid()), static_cast<long long>(config_.start_timeout_ns / 1'000'000));
      unheard_.worker = static_cast<std::int32_t>(w);
      fail(unheard_);
      peer.set_state(worker::State::failed);
    }
    if (peer.has_process()) peer.cut_off(poller_);
    else lose(w);
  }
}

// ---- hearing ----

void Loader::handle(const os::Poller::Event& event) {
  if (event.tag == UINT64_MAX) return os::drain_event(wake_event_.get());
  if (event.tag == UINT64_MAX - 1) return os::drain_event(timer_.get());
  const Tag tag = Tag::unpack(event.tag);
  Peer& peer = peers_[tag.worker];
  if (peer.state() == worker::State::none || peer.generation() != tag.generation) return;  // a predecessor's
  switch (tag.kind) {
    case Tag::doorbell: return peer.drain_doorbell();
    case Tag::socket: return hear(tag.worker);
    case Tag::process: return lose(tag.worker);
  }
}

// One message; the poller tells of the next, so that a worker that floods its socket can't hold the trainer up.
void Loader::hear(std::uint32_t w) {
  Peer& peer = peers_[w];
  Error error;
  switch (peer.listen(poller_, error)) {
    case Peer::Heard::nothing: return;
    case Peer::Heard::attached:
    case Peer::Heard::ready: return assign_pending();
    case Peer::Heard::cannot_open: return fail(error);
    case Peer::Heard::left:
      // It can't write any more. A process of somebody else may live on; one of ours has nothing else to do.
      if (!peer.is_spawned()) return lose(w);
      return peer.is_ending() ? peer.close_socket(poller_) : peer.cut_off(poller_);
    case Peer::Heard::hung_up:
      if (!peer.has_process()) return lose(w);  // an offer that nobody took
      return peer.is_ending() ? peer.close_socket(poller_) : peer.cut_off(poller_);
    case Peer::Heard::nonsense:
      Counters::add(counters_.invalid_results);
      if (!peer.has_attached()) fail(error);
      if (!peer.has_process()) return lose(w);
      return peer.cut_off(poller_);
  }
}

// ---- losing and replacing ----

// The worker is observed gone: what it committed counts, the rest goes to others, and another takes its place.
void Loader::lose(std::uint32_t w) {
  Peer& peer = peers_[w];
  const bool expected = stopping_ || peer.is_ending();
  const bool had_attached = peer.has_attached();
  const pid_t pid = peer.pid();
  const os::Ending ending = peer.reap();
  drain_lane(w);
  lanes_.close(w);
  take_back_tasks(w);
  peer.close(poller_);
  const bool work_left = begun_ && !(exhausted_ && ledger_.in_flight() == 0);
  if (!expected && work_left) replace(w, had_attached, ending, pid);
  assign_pending();
}

void Loader::take_back_tasks(std::uint32_t w) {
  const std::uint64_t in_hand = peers_[w].started_task();
  for (std::uint32_t slot = 0; slot < ledger_.slots(); slot++) {
    Record& r = ledger_.at(slot);
    if (r.worker != w) continue;
    if (r.state == Record::State::abandoned) {
      abandoned_--;
      r.state = Record::State::idle;
      slots_.put_back(slot);
    } else if (r.state == Record::State::sent) {
      if (r.id == in_hand) r.kills++;
      r.attempt++;
      if (r.kills < config_.max_kills_per_batch) {
        r.state = Record::State::pending;
        pending_++;
        Counters::add(counters_.redispatched);
      } else {
        (void)r.error.refuse(FEEDLANE_E_QUARANTINED, "config.max_kills_per_batch", r.kills, config_.max_kills_per_batch,
                             "%u workers have died with this batch in hand", r.kills);
        r.error.worker = static_cast<std::int32_t>(w);
        r.state = Record::State::failed;
        Counters::add(counters_.quarantined);
      }
    }
  }
}

void Loader::replace(std::uint32_t w, bool had_attached, os::Ending ending, pid_t pid) {
  Peer& peer = peers_[w];
  if (config_.external) return;  // the host is asked for another by open_worker
  char how[64] = "ended";
  if (ending.known)
    (void)std::snprintf(how, sizeof how, ending.signaled ? "was killed by signal %d" : "exited with status %d",
                        ending.code);
  Error error;
  const std::uint64_t restarts = counters_.restarts.load(std::memory_order_relaxed);
  if (!had_attached && ++peer.start_failures >= max_start_failures)
    (void)error.refuse(FEEDLANE_E_INIT, "config.argv", peer.start_failures, max_start_failures,
                       "worker %u: process %d %s before it attached, the %uth in a row: is %.200s a feedlane worker?",
                       w, static_cast<int>(pid), how, peer.start_failures, config_.argv[0].c_str());
  else if (restarts >= config_.max_restarts)
    (void)error.refuse(FEEDLANE_E_RESTARTS, "config.max_restarts", static_cast<std::int64_t>(restarts) + 1,
                       config_.max_restarts, "worker %u: process %d %s, and %llu workers have been replaced already", w,
                       static_cast<int>(pid), how, static_cast<unsigned long long>(restarts));
  else if (start(w, error) == FEEDLANE_OK) return Counters::add(counters_.restarts);
  else if (any_there()) return;  // the others go on; the next begin tries again
  error.worker = static_cast<std::int32_t>(w);
  fail(error);
}

// ---- ending ----

Status Loader::wait_for_ends(os::Deadline deadline, Error& error) {
  std::array<os::Poller::Event, 64> events{};
  while (any_there()) {
    std::size_t count = 0;
    const Status s = poller_.wait(deadline, events, count, error);
    for (std::size_t i = 0; i < count; i++) handle(events[i]);
    if (s == FEEDLANE_TIMEOUT || s < 0) return s;
  }
  return FEEDLANE_OK;
}

// All workers at once: done-event, then SIGTERM, then SIGKILL.
Status Loader::end_workers(Error& error) {
  stopping_ = true;
  for (std::uint32_t w = 0; w < peers_.size(); w++) {
    Peer& peer = peers_[w];
    if (!peer.is_live()) continue;
    if (peer.has_attached()) {
      peer.ask_to_end();
    } else if (peer.has_process()) {  // it has nothing to finish
      peer.set_state(worker::State::stopping);
      peer.kill(SIGKILL);
    } else {
      lose(w);
    }
  }
  const auto kill_all = [&](int signal) {
    for (const Peer& p : peers_)
      if (p.state() != worker::State::none) p.kill(signal);
  };
  Status s = wait_for_ends(os::Deadline::after(config_.stop_timeout_ns), error);
  if (s == FEEDLANE_TIMEOUT) {
    kill_all(SIGTERM);
    s = wait_for_ends(os::Deadline::after(config_.term_timeout_ns), error);
  }
  if (s == FEEDLANE_TIMEOUT) {
    kill_all(SIGKILL);
    s = wait_for_ends(os::Deadline::after(config_.stop_timeout_ns), error);
  }
  stopping_ = false;
  if (s != FEEDLANE_TIMEOUT) return s;
  for (std::uint32_t w = 0; w < peers_.size(); w++) {
    if (peers_[w].state() == worker::State::none) continue;
    (void)error.refuse(FEEDLANE_E_HUNG, "worker", static_cast<std::int64_t>(w), 0,
                       "worker %u (pid %d) is still there after SIGKILL", w, static_cast<int>(peers_[w].pid()));
    error.worker = static_cast<std::int32_t>(w);
  }
  return FEEDLANE_E_HUNG;
}

}  // namespace feedlane::loader
