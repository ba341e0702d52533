// SPDX-License-Identifier: Apache-2.0
// Opening shared memory of another process.
#include "os/other_process.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "os/memfd.hpp"
#include "unit/os/fixtures.hpp"

using feedlane::Error;
using feedlane::os::Fd;
namespace os = feedlane::os;

TEST_CASE("shared memory of another process is reopened read-only and close-on-exec") {
  Fd fd;
  Error error;
  REQUIRE(os::create_memfd("feedlane-test", 4096, fd, error) == FEEDLANE_OK);
  Fd again;
  REQUIRE(os::open_again(::getpid(), fd.get(), again, error) == FEEDLANE_OK);
  REQUIRE(again);
  struct stat one {};
  struct stat other {};
  REQUIRE(::fstat(fd.get(), &one) == 0);
  REQUIRE(::fstat(again.get(), &other) == 0);
  CHECK(one.st_ino == other.st_ino);
  CHECK(::write(again.get(), "x", 1) == -1);
  CHECK((::fcntl(again.get(), F_GETFD) & FD_CLOEXEC) != 0);
  Fd none;
  CHECK(os::open_again(::getpid(), 1 << 20, none, error) == FEEDLANE_OK);
  CHECK_FALSE(none);
}

TEST_CASE("files that aren't shared memory are not reopened, and a FIFO doesn't block the call") {
  const feedlane::test::Folder folder;
  const std::string path = folder.path() + "/memfd:feedlane-control (deleted)";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const Fd fifo(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(fifo);
  const feedlane::test::Pipe pipe;
  const Fd device(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const int number : {fifo.get(), pipe.read.get(), device.get()})
    CHECK(feedlane::test::in_child([&] {
      (void)::alarm(10);  // ends the child, should it wait
      Fd none;
      Error error;
      return os::open_again(::getpid(), number, none, error) == FEEDLANE_OK && !none;
    }));
}

TEST_CASE("reopening another process's memory without a free descriptor fails with E_OS and EMFILE") {
  Fd fd;
  Error error;
  REQUIRE(os::create_memfd("feedlane-test", 4096, fd, error) == FEEDLANE_OK);
  CHECK(feedlane::test::in_child([&] {
    const rlimit none{0, 0};
    Fd again;
    Error why;
    return ::setrlimit(RLIMIT_NOFILE, &none) == 0 &&
           os::open_again(::getpid(), fd.get(), again, why) == FEEDLANE_E_OS && why.os_errno == EMFILE && !again;
  }));
}
