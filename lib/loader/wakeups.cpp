// SPDX-License-Identifier: Apache-2.0
// The event and the timer that wake the loader's thread.
#include "loader/wakeups.hpp"

#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>

#include "os/event.hpp"

namespace feedlane::loader {
namespace {

// These tags differ from those of workers: see supervisor::Tag.
constexpr std::uint64_t event_tag = UINT64_MAX;
constexpr std::uint64_t timer_tag = UINT64_MAX - 1;
constexpr std::uint64_t sampler_tag = UINT64_MAX - 3;

}  // namespace

Status Wakeups::open(os::Poller& poller, const ring::SleepFlag* sleeping, Error& error) {
  sleeping_ = sleeping;
  Status s = os::create_event(event_, error);
  if (s == FEEDLANE_OK) s = poller.add_bell(event_.get(), event_tag, error);
  if (s != FEEDLANE_OK || sleeping == nullptr) return s;
  s = os::create_timer(timer_, error);
  return s == FEEDLANE_OK ? poller.add(timer_.get(), timer_tag, error) : s;
}

Status Wakeups::watch_sampler(os::Poller& poller, int fd, Error& error) {
  poller_ = &poller;
  sampler_fd_ = fd;
  const Status s = poller.add_once(fd, sampler_tag, error);
  watches_sampler_ = s == FEEDLANE_OK;
  if (s == FEEDLANE_OK || (error.os_errno != EBADF && error.os_errno != EPERM)) return s;
  return error.refuse(FEEDLANE_E_ARGUMENT, "callbacks.wake_fd", fd, 0,
                      "callbacks.wake_fd is {}, which is {}: pass an eventfd, timerfd, epoll, pipe, socket or inotify "
                      "descriptor",
                      fd, error.os_errno == EBADF ? "not open" : "a file that epoll cannot watch");
}

Status Wakeups::await_sampler(Error& error) {
  if (!watches_sampler_)
    if (const Status s = poller_->watch_again(sampler_fd_, sampler_tag, error); s != FEEDLANE_OK) return s;
  watches_sampler_ = awaits_sampler_ = true;
  return FEEDLANE_OK;
}

void Wakeups::interrupt() {
  attention_.fetch_or(interrupted, std::memory_order_relaxed);
  os::signal_event(event_.get());
}

void Wakeups::close() {
  attention_.fetch_or(closed, std::memory_order_relaxed);
  os::signal_event(event_.get());
}

void Wakeups::wake() {
  if (sleeping_ != nullptr) (void)ring::Doorbell(sleeping_, event_.get()).ring();
}

void Wakeups::wake_inline_too() {
  if (sleeping_ == nullptr) os::signal_event(event_.get());  // inline has no sleep flag
  else wake();
}

bool Wakeups::take_interruption() {
  return is_interrupted() && (attention_.fetch_and(~interrupted, std::memory_order_relaxed) & interrupted) != 0;
}

Status Wakeups::set_alarm(os::Deadline deadline, Error& error) { return os::set_timer(timer_.get(), deadline, error); }

bool Wakeups::handle(const os::Poller::Event& event) {
  if (event.tag == outlet_tag) return true;
  if (event.tag == sampler_tag) {
    watches_sampler_ = awaits_sampler_ = false;
    return true;
  }
  if (event.tag != event_tag && event.tag != timer_tag) return false;
  os::drain_event((event.tag == event_tag ? event_ : timer_).get());
  return true;
}

void Wakeups::close_in_child() {
  event_.reset();
  timer_.reset();
}

}  // namespace feedlane::loader
