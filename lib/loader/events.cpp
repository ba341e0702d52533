// SPDX-License-Identifier: Apache-2.0
#include "loader/events.hpp"

#include "os/clock.hpp"

namespace feedlane::loader {

void EventQueue::push(std::int32_t kind, const Error& what) {
  const std::lock_guard lock(mutex_);
  if (count_ == capacity) {
    first_ = (first_ + 1) % capacity;
    count_--;
    lost_++;
  }
  feedlane_event& e = events_[(first_ + count_) % capacity];
  e = {};
  e.size = sizeof e;
  e.kind = kind;
  e.time_ns = static_cast<std::uint64_t>(os::now_ns());
  e.what = to_c(what);
  count_++;
}

bool EventQueue::pop(feedlane_event& out) {
  const std::lock_guard lock(mutex_);
  if (count_ == 0) return false;
  out = events_[first_];
  out.lost = lost_;
  lost_ = 0;
  first_ = (first_ + 1) % capacity;
  count_--;
  return true;
}

}  // namespace feedlane::loader
