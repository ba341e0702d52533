// SPDX-License-Identifier: Apache-2.0
// Owned descriptors: their numbers, and what becomes of one that finds none.
#include "os/fd.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <array>

#include "os/event.hpp"
#include "os/memfd.hpp"
#include "os/socket.hpp"
#include "unit/os/fixtures.hpp"

using feedlane::Error;
using feedlane::os::Fd;
namespace os = feedlane::os;

namespace {

// In a child, whose exit status is the line of what doesn't hold.
#define MUST(condition) \
  if (!(condition)) ::_exit(__LINE__)

// In a child without the descriptors 0, 1 and 2.
template <class F>
void without_stdio(F&& run) {
  const pid_t child = feedlane::test::fork_child([&] {
    for (const int fd : {0, 1, 2}) (void)::close(fd);
    run();
    for (const int fd : {0, 1, 2}) MUST(::fcntl(fd, F_GETFD) < 0);
  });
  CHECK_MESSAGE(feedlane::test::wait_for_end(child) == 0, "256 times the line");
}

}  // namespace

TEST_CASE("a descriptor below 3 is moved when it gets an owner, is close-on-exec, and its old number becomes free") {
  without_stdio([] {
    const Fd made(::open("/dev/null", O_RDONLY));
    MUST(made.get() > 2);
    MUST((::fcntl(made.get(), F_GETFD) & FD_CLOEXEC) != 0);
    Fd later;
    later.reset(::open("/dev/null", O_RDONLY));
    MUST(later.get() > 2);
  });
}

TEST_CASE("no function of the os layer returns a descriptor below 3, not even for received descriptors") {
  without_stdio([] {
    Error error;
    Fd mine, theirs, event, timer, memory, read_end, write_end;
    MUST(os::create_socket_pair(mine, theirs, error) == FEEDLANE_OK);
    MUST(os::create_event(event, error) == FEEDLANE_OK);
    MUST(os::create_timer(timer, error) == FEEDLANE_OK);
    MUST(os::create_memfd("x", 4096, memory, error) == FEEDLANE_OK);
    MUST(os::open_pipe(read_end, write_end));
    const std::array fds{event.get(), memory.get(), read_end.get()};
    const std::array bytes{std::byte{1}};
    MUST(os::send_message(mine.get(), bytes, fds, error) == FEEDLANE_OK);
    std::array<std::byte, 8> buffer{};
    os::Received received;
    MUST(os::receive_message(theirs.get(), buffer, received, error) == FEEDLANE_OK);
    MUST(received.fd_count == 3);
    for (const Fd& fd : received.fds) MUST(!fd || fd.get() > 2);
  });
}

TEST_CASE("if no number above 2 is free, creation and receipt of descriptors fail with EMFILE and leave nothing open") {
  without_stdio([] {
    Error error;
    Fd mine, theirs, event, other, memory;
    MUST(os::create_socket_pair(mine, theirs, error) == FEEDLANE_OK);
    MUST(os::create_event(event, error) == FEEDLANE_OK);
    const std::array fds{event.get(), event.get()};
    const std::array bytes{std::byte{1}};
    MUST(os::send_message(mine.get(), bytes, fds, error) == FEEDLANE_OK);
    const rlimit none{3, 3};
    MUST(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    MUST(os::create_event(other, error) == FEEDLANE_E_OS);
    MUST(error.os_errno == EMFILE);
    MUST(os::create_memfd("x", 4096, memory, error) == FEEDLANE_E_OS);
    MUST(error.os_errno == EMFILE);
    MUST(os::create_socket_pair(other, memory, error) == FEEDLANE_E_OS);
    MUST(error.os_errno == EMFILE);
    std::array<std::byte, 8> buffer{};
    os::Received received;
    MUST(os::receive_message(theirs.get(), buffer, received, error) == FEEDLANE_E_OS);
    MUST(error.os_errno == EMFILE);
    MUST(received.fd_count == 0);
  });
}

TEST_CASE("an Fd keeps a number that is not an open descriptor, so that an error can name it") {
  without_stdio([] {
    Fd none(1);
    MUST(none.release() == 1);
  });
}
