// SPDX-License-Identifier: Apache-2.0
// epoll with nanosecond deadlines.
#include "os/poller.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <climits>

namespace feedlane::os {
namespace {

// Uses epoll_pwait2 (Linux 5.11), which takes nanoseconds. Without it, waits for milliseconds, rounded up; the caller
// checks the time again.
int epoll_wait_ns(int epoll, epoll_event* events, int capacity, Deadline deadline) {
  const std::int64_t left = deadline.remaining_ns();
#ifdef SYS_epoll_pwait2
  timespec time{};
  time.tv_sec = left / 1'000'000'000;
  time.tv_nsec = left % 1'000'000'000;
  const long result =
      ::syscall(SYS_epoll_pwait2, epoll, events, capacity, deadline.is_never() ? nullptr : &time, nullptr, 0);
  // ENOSYS: the kernel doesn't have it. EPERM: an older system call filter of a container refuses it.
  if (result >= 0 || (errno != ENOSYS && errno != EPERM)) return static_cast<int>(result);
#endif
  const std::int64_t ms = left > INT64_MAX - 999'999 ? INT_MAX : (left + 999'999) / 1'000'000;
  return ::epoll_wait(epoll, events, capacity,
                      deadline.is_never() ? -1 : static_cast<int>(std::min<std::int64_t>(ms, INT_MAX)));
}

}  // namespace

Status Poller::open(Error& error) {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  return epoll_ ? FEEDLANE_OK : error.os(errno, "epoll_create1");
}

Status Poller::add(int fd, std::uint64_t tag, Error& error) { return control(EPOLL_CTL_ADD, fd, tag, EPOLLIN, error); }

// Every write to an eventfd is an edge, whatever the counter's value, and at any value an eventfd is readable, writable
// or both. So no ring is lost.
Status Poller::add_bell(int fd, std::uint64_t tag, Error& error) {
  return control(EPOLL_CTL_ADD, fd, tag, EPOLLIN | EPOLLOUT | EPOLLET, error);
}

Status Poller::add_once(int fd, std::uint64_t tag, Error& error) {
  return control(EPOLL_CTL_ADD, fd, tag, EPOLLIN | EPOLLONESHOT, error);
}

// The kernel checks the descriptor now, so one that became readable before is reported too.
Status Poller::watch_again(int fd, std::uint64_t tag, Error& error) {
  return control(EPOLL_CTL_MOD, fd, tag, EPOLLIN | EPOLLONESHOT, error);
}

Status Poller::control(int operation, int fd, std::uint64_t tag, std::uint32_t conditions, Error& error) {
  epoll_event event{};
  event.events = conditions;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0)
    return error.os(errno, "epoll_ctl {} of {}", operation == EPOLL_CTL_ADD ? "add" : "mod", fd);
  return FEEDLANE_OK;
}

void Poller::remove(int fd) {
  if (fd >= 0) (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

bool Poller::has_events() const {
  pollfd entry{epoll_.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

namespace {

// os_errno distinguishes a signal from feedlane_loader_interrupt.
Status interrupted(Error& error) {
  (void)error.fail(FEEDLANE_INTERRUPTED, "a signal interrupted the wait");
  error.os_errno = EINTR;
  return error.code;
}

}  // namespace

Status Poller::wait(Deadline deadline, std::span<Event> events, std::size_t& count, Error& error) {
  std::array<epoll_event, 64> ready{};
  const auto capacity = static_cast<int>(std::min(ready.size(), events.size()));
  count = 0;
  const int found = epoll_wait_ns(epoll_.get(), ready.data(), capacity, deadline);
  if (found < 0) return errno == EINTR ? interrupted(error) : error.os(errno, "epoll_wait");
  if (found == 0) return FEEDLANE_TIMEOUT;
  count = static_cast<std::size_t>(found);
  for (std::size_t i = 0; i < count; i++)
    events[i] = {ready[i].data.u64, (ready[i].events & (EPOLLHUP | EPOLLERR)) != 0};
  return FEEDLANE_OK;
}

Status wait_readable(int fd, Deadline deadline, Error& error, int other) {
  pollfd entries[]{{fd, POLLIN, 0}, {other, POLLIN, 0}};  // poll ignores a negative one
  const std::int64_t left = deadline.remaining_ns();
  timespec time{};
  time.tv_sec = left / 1'000'000'000;
  time.tv_nsec = left % 1'000'000'000;
  const int found = ::ppoll(entries, 2, deadline.is_never() ? nullptr : &time, nullptr);
  if (found < 0) return errno == EINTR ? interrupted(error) : error.os(errno, "ppoll");
  return found == 0 ? FEEDLANE_TIMEOUT : FEEDLANE_OK;
}

}  // namespace feedlane::os
