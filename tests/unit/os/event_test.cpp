// SPDX-License-Identifier: Apache-2.0
// eventfds, and descriptors with one owner.
#include "os/event.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/memfd.hpp"
#include "os/poller.hpp"
#include "unit/os/fixtures.hpp"

using feedlane::Error;
using feedlane::os::Deadline;
using feedlane::os::Fd;
namespace os = feedlane::os;

namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }
bool is_rung(int event) {
  Error error;
  return os::wait_readable(event, Deadline::after(0), error) == FEEDLANE_OK;
}

}  // namespace

TEST_CASE("an event stays signalled until it is drained, however often it was signalled") {
  Fd event;
  Error error;
  REQUIRE(os::create_event(event, error) == FEEDLANE_OK);
  CHECK((::fcntl(event.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK_FALSE(is_rung(event.get()));
  os::drain_event(event.get());  // nothing there: doesn't wait
  os::signal_event(event.get());
  os::signal_event(event.get());
  CHECK(is_rung(event.get()));
  os::drain_event(event.get());
  CHECK_FALSE(is_rung(event.get()));
}

TEST_CASE("ringing keeps errno, and a full counter doesn't block the ringing process") {
  Fd event;
  Error error;
  REQUIRE(os::create_event(event, error) == FEEDLANE_OK);
  const std::uint64_t almost_full = UINT64_MAX - 1;
  REQUIRE(::write(event.get(), &almost_full, sizeof almost_full) == sizeof almost_full);
  errno = ENOTTY;
  os::signal_event(event.get());
  CHECK(errno == ENOTTY);
  CHECK(is_rung(event.get()));
  os::signal_event(-1);
  CHECK(errno == ENOTTY);
}

TEST_CASE("a descriptor is closed once, by its last owner") {
  feedlane::test::Pipe pipe;
  const int number = pipe.read.get();
  {
    Fd first = std::move(pipe.read);
    CHECK_FALSE(pipe.read);
    Fd second;
    second = std::move(first);
    CHECK_FALSE(first);
    CHECK(second.get() == number);
    Fd& itself = second;
    second = std::move(itself);
    CHECK(is_open(number));
  }
  CHECK_FALSE(is_open(number));
  const int kept = pipe.write.release();
  CHECK_FALSE(pipe.write);
  CHECK(is_open(kept));
  Fd(kept).reset();
  CHECK_FALSE(is_open(kept));
}

TEST_CASE("an eventfd is accepted as a doorbell; a pipe, a socket, a file or a device fails with E_CORRUPT") {
  Error error;
  Fd event, memory;
  REQUIRE(feedlane::os::create_event(event, error) == FEEDLANE_OK);
  CHECK(feedlane::os::check_bell(event.get(), error) == FEEDLANE_OK);
  int pipe[2], pair[2];
  REQUIRE(::pipe2(pipe, O_CLOEXEC) == 0);
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  REQUIRE(feedlane::os::create_memfd("x", 4096, memory, error) == FEEDLANE_OK);
  const Fd others[]{Fd(pipe[1]), Fd(pipe[0]),       Fd(pair[0]),
                    Fd(pair[1]), std::move(memory), Fd(::open("/dev/null", O_RDWR | O_CLOEXEC))};
  for (const Fd& other : others) {
    error = {};
    CHECK(feedlane::os::check_bell(other.get(), error) == FEEDLANE_E_CORRUPT);
    CHECK(error.found != 0);
  }
  CHECK(feedlane::os::check_bell(-1, error) == FEEDLANE_E_OS);
}
