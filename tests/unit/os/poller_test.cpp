// SPDX-License-Identifier: Apache-2.0
// Waiting for many descriptors, and for one.
#include "os/poller.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "os/event.hpp"
#include "unit/os/fixtures.hpp"

using feedlane::Error;
using feedlane::Status;
using feedlane::os::Deadline;
using feedlane::os::Fd;
using feedlane::os::Poller;
namespace os = feedlane::os;
using feedlane::test::Pipe;

namespace {

struct Set {
  Set() { REQUIRE(poller.open(error) == FEEDLANE_OK); }
  Status wait(Deadline deadline, std::size_t room = 8) {
    events.assign(room, {});
    std::size_t count = 99;
    const Status s = poller.wait(deadline, events, count, error);
    events.resize(count);
    return s;
  }
  [[nodiscard]] std::vector<std::uint64_t> tags() const {
    std::vector<std::uint64_t> result;
    for (const auto& e : events) result.push_back(e.tag);
    std::sort(result.begin(), result.end());
    return result;
  }
  Poller poller;
  Error error;
  std::vector<Poller::Event> events;
};

Fd make_event() {
  Fd fd;
  Error error;
  REQUIRE(os::create_event(fd, error) == FEEDLANE_OK);
  return fd;
}

constexpr std::int64_t a_little = 2'000'000;

}  // namespace

TEST_CASE("without events a wait ends at its deadline and not earlier") {
  Set set;
  const Fd event = make_event();
  CHECK(set.poller.add(event.get(), 1, set.error) == FEEDLANE_OK);
  CHECK(set.wait(Deadline::after(0)) == FEEDLANE_TIMEOUT);
  CHECK(set.events.empty());
  CHECK(set.wait(Deadline::at(1)) == FEEDLANE_TIMEOUT);
  const std::int64_t before = os::now_ns();
  CHECK(set.wait(Deadline::after(a_little)) == FEEDLANE_TIMEOUT);
  CHECK(os::now_ns() - before >= a_little);
}

TEST_CASE("one wait returns all ready descriptors, each with its tag, until they are drained") {
  Set set;
  const std::array fds{make_event(), make_event(), make_event()};
  const std::array<std::uint64_t, 3> tags{7, UINT64_MAX, std::uint64_t{1} << 40};
  for (std::size_t i = 0; i < fds.size(); i++) CHECK(set.poller.add(fds[i].get(), tags[i], set.error) == FEEDLANE_OK);
  os::signal_event(fds[0].get());
  os::signal_event(fds[1].get());
  for (int again = 0; again < 2; again++) {
    CHECK(set.wait(Deadline::never()) == FEEDLANE_OK);
    CHECK(set.tags() == std::vector<std::uint64_t>{7, UINT64_MAX});
    CHECK_FALSE(set.events[0].hung_up);
  }
  os::drain_event(fds[0].get());
  CHECK(set.wait(Deadline::never()) == FEEDLANE_OK);
  CHECK(set.tags() == std::vector<std::uint64_t>{UINT64_MAX});
}

TEST_CASE("a descriptor that is added once is reported once per watch, also if it was readable before the watch") {
  Set set;
  const Fd event = make_event();
  CHECK(set.poller.add_once(event.get(), 7, set.error) == FEEDLANE_OK);
  for (int watch = 0; watch < 2; watch++) {
    CHECK(set.wait(Deadline::after(0)) == FEEDLANE_TIMEOUT);
    os::signal_event(event.get());
    for (int again = 0; again < 2; again++) {  // it stays readable
      CHECK(set.wait(Deadline::never()) == FEEDLANE_OK);
      CHECK(set.tags() == std::vector<std::uint64_t>{7});
      CHECK(set.wait(Deadline::after(0)) == FEEDLANE_TIMEOUT);
      CHECK(set.poller.watch_again(event.get(), 7, set.error) == FEEDLANE_OK);
    }
    os::drain_event(event.get());
  }
}

TEST_CASE("a wait returns at most as many events as the caller has room for; the next wait returns the others") {
  Set set;
  const std::array fds{make_event(), make_event(), make_event()};
  for (const Fd& fd : fds) {
    CHECK(set.poller.add(fd.get(), static_cast<std::uint64_t>(fd.get()), set.error) == FEEDLANE_OK);
    os::signal_event(fd.get());
  }
  std::vector<std::uint64_t> seen;
  for (std::size_t i = 0; i < fds.size(); i++) {
    CHECK(set.wait(Deadline::never(), 1) == FEEDLANE_OK);
    REQUIRE(set.events.size() == 1);
    seen.push_back(set.events[0].tag);
    os::drain_event(static_cast<int>(set.events[0].tag));
  }
  std::sort(seen.begin(), seen.end());
  CHECK(std::unique(seen.begin(), seen.end()) == seen.end());
  CHECK(set.wait(Deadline::after(0), 1) == FEEDLANE_TIMEOUT);
}

TEST_CASE("closing the other end is an event that is distinguished from input") {
  Set set;
  Pipe pipe;
  CHECK(set.poller.add(pipe.read.get(), 5, set.error) == FEEDLANE_OK);
  CHECK(::write(pipe.write.get(), "x", 1) == 1);
  CHECK(set.wait(Deadline::never()) == FEEDLANE_OK);
  CHECK_FALSE(set.events[0].hung_up);
  pipe.write.reset();
  CHECK(set.wait(Deadline::never()) == FEEDLANE_OK);
  REQUIRE(set.events.size() == 1);
  CHECK(set.events[0].tag == 5);
  CHECK(set.events[0].hung_up);
}

TEST_CASE("a removed descriptor, or one that was never added, has no events") {
  Set set;
  const Fd event = make_event();
  os::signal_event(event.get());
  CHECK(set.poller.add(event.get(), 1, set.error) == FEEDLANE_OK);
  set.poller.remove(event.get());
  set.poller.remove(event.get());
  set.poller.remove(-1);
  CHECK(set.wait(Deadline::after(0)) == FEEDLANE_TIMEOUT);
  CHECK(set.poller.add(-1, 1, set.error) == FEEDLANE_E_OS);
  CHECK(set.error.os_errno == EBADF);
}

TEST_CASE("the poller's descriptor can be polled by a foreign event loop") {
  Set set;
  const Fd event = make_event();
  CHECK(set.poller.add(event.get(), 1, set.error) == FEEDLANE_OK);
  CHECK((::fcntl(set.poller.fd(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(os::wait_readable(set.poller.fd(), Deadline::after(0), set.error) == FEEDLANE_TIMEOUT);
  os::signal_event(event.get());
  CHECK(os::wait_readable(set.poller.fd(), Deadline::never(), set.error) == FEEDLANE_OK);
}

TEST_CASE("a wait for one descriptor ends when it is readable, when it is hung up, or at the deadline") {
  Pipe pipe;
  Error error;
  CHECK(os::wait_readable(pipe.read.get(), Deadline::after(0), error) == FEEDLANE_TIMEOUT);
  const std::int64_t before = os::now_ns();
  CHECK(os::wait_readable(pipe.read.get(), Deadline::after(a_little), error) == FEEDLANE_TIMEOUT);
  CHECK(os::now_ns() - before >= a_little);
  CHECK(::write(pipe.write.get(), "x", 1) == 1);
  CHECK(os::wait_readable(pipe.read.get(), Deadline::never(), error) == FEEDLANE_OK);
  char byte = 0;
  CHECK(::read(pipe.read.get(), &byte, 1) == 1);
  pipe.write.reset();
  CHECK(os::wait_readable(pipe.read.get(), Deadline::never(), error) == FEEDLANE_OK);
}

TEST_CASE("a signal ends a wait that has no deadline and no ready descriptor") {
  Set set;
  const Pipe pipe;
  CHECK(set.poller.add(pipe.read.get(), 1, set.error) == FEEDLANE_OK);
  const feedlane::test::Signals signals(INT32_MAX);
  CHECK(set.wait(Deadline::never()) == FEEDLANE_INTERRUPTED);
  CHECK(set.events.empty());
  CHECK(os::wait_readable(pipe.read.get(), Deadline::never(), set.error) == FEEDLANE_INTERRUPTED);
}
