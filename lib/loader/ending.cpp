// SPDX-License-Identifier: Apache-2.0
// Workers are asked to end, killed, and waited for; a loader that nobody waits for leaves them to the kernel.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <new>

#include "loader/loader.hpp"

namespace feedlane::loader {

using worker::Peer;

// A worker that never stops ringing has news in every round.
Status Loader::wait_for_ends(os::Deadline deadline, bool interruptible, Error& error) {
  std::array<os::Poller::Event, 64> events{};
  while (any_there()) {
    std::size_t count = 0;
    const Status s = poller_.wait(deadline, events, count, error);
    for (std::size_t i = 0; i < count; i++) handle(events[i]);
    if (is_cut_short()) return FEEDLANE_INTERRUPTED;
    if (s == FEEDLANE_TIMEOUT || s < 0 || (s == FEEDLANE_INTERRUPTED && interruptible)) return s;
    if (deadline.remaining_ns() == 0 && any_there()) return FEEDLANE_TIMEOUT;
  }
  return FEEDLANE_OK;
}

// Those that were fenced before may have gone since, or go soon: a process with much memory takes its time.
Status Loader::wait_for_undead(std::int64_t death_ns, Error& error) {
  std::array<os::Poller::Event, 64> events{};
  for (;;) {
    std::int64_t last = 0;
    bool any = false;
    for (const Peer& p : peers_) {
      if (!p.is_undead()) continue;
      any = true;
      last = std::max(last, p.killed_ns() + death_ns);
    }
    if (!any) return FEEDLANE_OK;
    std::size_t count = 0;
    const Status s = poller_.wait(os::Deadline::at(last), events, count, error);
    for (std::size_t i = 0; i < count; i++) handle(events[i]);
    if (is_cut_short()) return FEEDLANE_INTERRUPTED;
    if (s < 0) return s;
    if (count == 0 && os::now_ns() >= last) return FEEDLANE_TIMEOUT;
  }
}

// A tracer may still have some that have ended: a sanitizer's lets go of them soon, a debugger when it likes. Nothing tells when.
void Loader::wait_for_tracers() {
  const os::Deadline until = os::Deadline::after(patience_with_death_ns);
  while (!os::reap_abandoned() && !is_cut_short() && until.remaining_ns() > 0) (void)::usleep(1000);
}

// The done-event for those that have attached; the others have nothing to finish.
void Loader::ask_all_to_end() {
  for (std::uint32_t w = 0; w < peers_.size(); w++) {
    Peer& peer = peers_[w];
    if (peer.state() == worker::State::none || peer.was_cut_off()) continue;
    if (peer.has_attached()) {
      peer.ask_to_end();
    } else if (peer.has_process()) {
      peer.set_state(worker::State::stopping);
      peer.kill(SIGKILL);
    } else {
      lose(w);
    }
  }
}

void Loader::ask_workers_to_end() noexcept {
  try {
    {
      const std::lock_guard lock(offers_mutex_);
      offers_.clear();
    }
    stopping_ = true;
    ask_all_to_end();
    stopping_ = false;
  } catch (const std::bad_alloc&) {  // the others are asked by `stop`, or ended by `abandon`
    stopping_ = false;
  }
}

// Cutting their lifelines kills the others that are tied; those that aren't, and threads, end with their next task.
void Loader::abandon() noexcept {
  if (any_there()) ask_workers_to_end();
  for (Peer& p : peers_)
    if (p.state() != worker::State::none && p.is_spawned()) p.abandon();
  (void)os::reap_abandoned();
  drop_inline();
  config_.dataset.close();
}

// All workers at once: done-event, then SIGTERM, then SIGKILL. What is left of processes then has `death_ns` since its
// SIGKILL to go.
Status Loader::end_workers(std::int64_t death_ns, Error& error) {
  stopping_ = true;
  for (Peer& p : peers_) p.start_again_ns = 0;
  {
    const std::lock_guard lock(offers_mutex_);
    offers_.clear();
  }
  Status s = take_news(error);  // of those that have attached since
  ask_all_to_end();
  const auto kill_all = [&](int signal) {
    for (Peer& p : peers_)
      if (p.state() != worker::State::none) p.kill(signal);
  };
  if (s >= 0) s = wait_for_ends(os::Deadline::after(config_.stop_timeout_ns), false, error);
  if (s == FEEDLANE_TIMEOUT) {
    kill_all(SIGTERM);
    s = wait_for_ends(os::Deadline::after(config_.term_timeout_ns), false, error);
  }
  const bool are_threads = config_.start == FEEDLANE_START_THREAD;  // those can't be killed
  if (s == FEEDLANE_TIMEOUT && !are_threads) {
    kill_all(SIGKILL);
    s = wait_for_ends(os::Deadline::after(death_ns), false, error);
  }
  if (s == FEEDLANE_TIMEOUT && !are_threads) {
    for (std::uint32_t w = 0; w < peers_.size(); w++)
      if (peers_[w].state() != worker::State::none && !peers_[w].is_fenced) fence_undead(w);
    s = FEEDLANE_OK;
  }
  if (s == FEEDLANE_OK) s = wait_for_undead(death_ns, error);
  if (s == FEEDLANE_OK) wait_for_tracers();
  stopping_ = false;
  if (s != FEEDLANE_TIMEOUT) return s;
  for (std::uint32_t w = 0; w < peers_.size(); w++) {
    if (peers_[w].state() == worker::State::none) continue;
    (void)error.refuse(FEEDLANE_E_HUNG, "worker", static_cast<std::int64_t>(w), 0,
                       are_threads ? "worker %u (pid %d) is a thread that has not left"
                                   : "worker %u (pid %d) is still there after SIGKILL",
                       w, static_cast<int>(peers_[w].pid()));
    error.worker = static_cast<std::int32_t>(w);
  }
  return FEEDLANE_E_HUNG;
}

}  // namespace feedlane::loader
