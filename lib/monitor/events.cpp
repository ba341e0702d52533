// SPDX-License-Identifier: Apache-2.0
// The queue of events.
#include "monitor/events.hpp"

#include <new>

#include "os/clock.hpp"

namespace feedlane::monitor {

void EventQueue::use(const shm::Segments& segments) {
  const std::lock_guard lock(mutex_);
  errors_.use(segments);
}

void EventQueue::note(const Error& what) {
  const std::lock_guard lock(mutex_);
  errors_.note(0, what);
}

void EventQueue::push(std::int32_t kind, const Error& what) {
  const std::lock_guard lock(mutex_);
  // These two kinds are not problems themselves, and other events report the problems that lead to them.
  const bool is_news = kind == FEEDLANE_EVENT_WORKER_STARTED || kind == FEEDLANE_EVENT_WORKER_WANTED;
  if (!is_news) errors_.note(kind, what);
  if (events_.size() == capacity) {
    events_.pop_front();
    lost_++;
  }
  feedlane_event e{};
  e.size = sizeof e;
  e.kind = kind;
  e.time_ns = static_cast<std::uint64_t>(os::now_ns());
  e.what = to_c(what);
  try {
    events_.push_back(e);
  } catch (const std::bad_alloc&) {
    lost_++;
  }
}

bool EventQueue::pop(feedlane_event& out) {
  const std::lock_guard lock(mutex_);
  if (events_.empty()) return false;
  out = events_.front();
  events_.pop_front();
  out.lost = lost_;
  lost_ = 0;
  return true;
}

}  // namespace feedlane::monitor
