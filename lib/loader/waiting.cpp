// SPDX-License-Identifier: Apache-2.0
// How the trainer sleeps, what wakes it, and what it looks at before it does and after.
#include <sys/timerfd.h>

#include <array>

#include "loader/loader.hpp"
#include "os/event.hpp"

namespace feedlane::loader {

void Loader::sleeper_cancel() {
  if (!peers_.empty()) sleeper_.cancel();
}

bool Loader::something_to_do() const {
  const bool may_rescue = any_stranded_ && slots_.free() > free_when_stranded_;
  return lanes_.any() || can_pull() || may_rescue || staging_gets_on() ||
         interrupted_.load(std::memory_order_relaxed) || is_cut_short();
}

Status Loader::wait(os::Deadline deadline, Error& error) {
  if (peers_.empty()) return FEEDLANE_TIMEOUT;
  if (begun_ && spin_.until(deadline, [&] { return something_to_do(); })) return FEEDLANE_OK;
  sleeper_.prepare();
  // Everything that another thread may have changed since `obstacle` looked: a stream's release that ended before the flag
  // was set has rung for nobody.
  if (begun_ && (something_to_do() || is_out_of_slots() || is_out_of_buffers() || is_left_to_fenced())) {
    sleeper_.cancel();
    return FEEDLANE_OK;
  }
  watch_workers();
  const os::Deadline first = next_deadline();
  std::array<os::Poller::Event, 64> events{};
  std::size_t count = 0;
  Status s = poller_.wait(deadline.earlier(first).earlier(next_look()), events, count, error);
  sleeper_.cancel();
  look();
  for (std::size_t i = 0; i < count; i++) handle(events[i]);
  if (!first.is_never() && first.remaining_ns() == 0) {
    // Who has attached or answered meanwhile must be heard before the others are given up.
    sweep();
    watch_workers();
    if (const Status news = take_news(error); news != FEEDLANE_OK) return news;
  }
  return s == FEEDLANE_TIMEOUT && deadline.remaining_ns() != 0 ? FEEDLANE_OK : s;
}

// Deaths, messages and deadlines that have come, without waiting for more. Bounded: a worker that never stops ringing has
// an event in every round.
Status Loader::take_news(Error& error) {
  std::array<os::Poller::Event, 64> events{};
  std::size_t count = 0;
  Status s = FEEDLANE_OK;
  // A worker has a doorbell, a process and a socket, over which it says three things before its end.
  const std::size_t rounds = 4 * (3 * peers_.size() / events.size() + 1);
  for (std::size_t round = 0; round < rounds && s != FEEDLANE_TIMEOUT; round++) {
    s = poller_.wait(os::Deadline::at(0), events, count, error);
    if (s < 0) return s;
    for (std::size_t i = 0; i < count; i++) handle(events[i]);
  }
  watch_workers();
  if (next_deadline().remaining_ns() == 0) check_deadlines();
  return FEEDLANE_OK;
}

// Deaths are heard of by waiting. Out of order, or with a slow trainer, there may always be another's batch and nothing to
// wait for: so once in many tasks, if one that was sent long before is still out. And when a worker must have said more than
// was heard.
Status Loader::listen_now_and_then(Error& error) {
  if (std::exchange(should_listen_, false)) return take_news(error);
  const std::uint64_t long_ago = std::uint64_t{4} * ledger_.slots();
  if (ledger_.next_id() - listened_at_ < long_ago) return FEEDLANE_OK;
  listened_at_ = ledger_.next_id();
  for (const worker::Peer& p : peers_)
    if (p.is_on_its_way()) return take_news(error);  // it has no task while others are ready
  for (std::uint32_t slot = 0; slot < ledger_.slots(); slot++)
    if (const Record& r = ledger_.at(slot); r.is_out() && listened_at_ - r.id >= long_ago) return take_news(error);
  return FEEDLANE_OK;
}

Status Loader::poll(Error& error) {
  if (peers_.empty()) return begun_ ? FEEDLANE_AGAIN : FEEDLANE_OK;
  sleeper_cancel();
  Status s = take_news(error);
  if (s == FEEDLANE_OK) {
    sweep();
    feed();
  }
  if (s != FEEDLANE_OK) return s;
  return next_has_news() ? FEEDLANE_AGAIN : FEEDLANE_OK;
}

bool Loader::next_has_news() {
  return begun_ && (front_is_done() || sampler_has_failed() || (exhausted_ && ledger_.in_flight() == 0) ||
                    obstacle(unheard_) != FEEDLANE_OK || interrupted_.load(std::memory_order_relaxed));
}

Status Loader::arm(Error& error) {
  if (peers_.empty()) return begun_ ? FEEDLANE_AGAIN : FEEDLANE_OK;
  look();
  itimerspec time{};
  if (const os::Deadline first = next_deadline().earlier(next_look()); !first.is_never()) {
    const std::int64_t left = std::max<std::int64_t>(first.remaining_ns(), 1);  // 0 would disarm it
    time.it_value.tv_sec = left / 1'000'000'000;
    time.it_value.tv_nsec = left % 1'000'000'000;
  }
  if (::timerfd_settime(timer_.get(), 0, &time, nullptr) != 0) return error.os(errno, "timerfd_settime");
  sleeper_.prepare();
  // In this order: the first may make room for tasks. The last: what is in the poller already wakes nobody who waits for edges.
  if (!next_has_news() && !something_to_do() && !poller_.has_news()) {
    watch_workers();
    return FEEDLANE_OK;
  }
  sleeper_.cancel();
  return FEEDLANE_AGAIN;
}

}  // namespace feedlane::loader
