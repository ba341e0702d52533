// SPDX-License-Identifier: Apache-2.0
// Sockets by path, and the wait for a message, of os/socket.hpp.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "os/poller.hpp"
#include "os/socket.hpp"
#include "support/skip.hpp"
#include "unit/os/fixtures.hpp"

using feedlane::Error;
using feedlane::Status;
using feedlane::os::Deadline;
using feedlane::os::Fd;
using feedlane::os::Received;
namespace os = feedlane::os;

namespace {

struct Place {
  feedlane::test::Folder folder;
  [[nodiscard]] std::string path() const { return folder.path() + "/socket"; }
};

Fd must_listen(const std::string& path) {
  Fd listener;
  os::SocketFile file;
  Error error;
  const Status s = os::listen_at(path, listener, file, error);
  REQUIRE_MESSAGE(s == FEEDLANE_OK, error.text);
  return listener;
}

}  // namespace

TEST_CASE("a connection by path is accepted, and the kernel names its process") {
  const Place place;
  const Fd listener = must_listen(place.path());
  Error error;
  Fd none;
  CHECK(os::accept_same_user(listener.get(), none, error) == FEEDLANE_AGAIN);
  const pid_t child = feedlane::test::fork_child([&] {
    Fd socket;
    Error mine;
    if (os::connect_to(place.path(), Deadline::after(0), socket, mine) != FEEDLANE_OK) ::_exit(1);
    const char text[] = "hello";
    if (os::send_message(socket.get(), std::as_bytes(std::span(text)), {}, mine) != FEEDLANE_OK) ::_exit(2);
  });
  REQUIRE(os::wait_readable(listener.get(), Deadline::never(), error) == FEEDLANE_OK);
  Fd socket;
  REQUIRE(os::accept_same_user(listener.get(), socket, error) == FEEDLANE_OK);
  CHECK((::fcntl(socket.get(), F_GETFD) & FD_CLOEXEC) != 0);
  std::array<std::byte, 16> buffer{};
  Received received;
  CHECK(os::await_message(socket.get(), buffer, Deadline::never(), received, error) == FEEDLANE_OK);
  CHECK(received.bytes == 6);
  CHECK(received.pid == child);
  CHECK(feedlane::test::wait_for_end(child) == 0);
}

TEST_CASE("a message sent at the moment a connection is accepted names its sender too") {
  const Place place;
  const Fd listener = must_listen(place.path());
  Fd theirs, socket;
  Error error;
  REQUIRE(os::connect_to(place.path(), Deadline::after(0), theirs, error) == FEEDLANE_OK);
  socket.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  REQUIRE(socket);
  const char text[] = "hello";  // before anything could be set on the accepted socket
  REQUIRE(os::send_message(theirs.get(), std::as_bytes(std::span(text)), {}, error) == FEEDLANE_OK);
  std::array<std::byte, 16> buffer{};
  Received received;
  CHECK(os::receive_message(socket.get(), buffer, received, error) == FEEDLANE_OK);
  CHECK(received.pid == ::getpid());
}

TEST_CASE("a socket file and its listener are private to the user and close-on-exec, whatever the umask is") {
  for (const mode_t mask : {0U, 022U, 077U, 0277U, 0777U}) {
    CAPTURE(mask);
    const Place place;
    const mode_t before = ::umask(mask);
    const Fd listener = must_listen(place.path());
    (void)::umask(before);
    struct stat status {};
    REQUIRE(::stat(place.path().c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    CHECK((::fcntl(listener.get(), F_GETFD) & FD_CLOEXEC) != 0);
  }
}

TEST_CASE("listening at a path in use is refused, a stale socket is replaced, and another kind of file is kept") {
  const Place place;
  Error error;
  Fd second;
  os::SocketFile file;
  {
    const Fd first = must_listen(place.path());
    CHECK(os::listen_at(place.path(), second, file, error) == FEEDLANE_E_STATE);
    CHECK(std::string(error.text).find(place.path()) != std::string::npos);
  }
  const Fd again = must_listen(place.path());  // nobody listens at the old one any more
  Fd socket;
  CHECK(os::connect_to(place.path(), Deadline::after(0), socket, error) == FEEDLANE_OK);
  place.folder.write("file", "precious");
  CHECK(os::listen_at(place.folder.path() + "/file", second, file, error) == FEEDLANE_E_OS);
  CHECK(std::filesystem::file_size(place.folder.path() + "/file") == 8);
}

TEST_CASE("errors of listen and connect say what kind of file is in the way of a socket and who owns it") {
  const Place place;
  const std::string folder = place.folder.path();
  const std::string own = " of this user, uid " + std::to_string(::geteuid());
  place.folder.write("file", "precious");
  std::filesystem::create_directory(folder + "/directory");
  std::filesystem::create_symlink("nowhere", folder + "/link");
  REQUIRE(::mkfifo((folder + "/fifo").c_str(), 0600) == 0);
  (void)must_listen(folder + "/theirs");  // and closed again
  struct Case {
    const char* name;
    std::string what;
  };
  std::vector<Case> cases{{"file", "a regular file" + own},
                          {"directory", "a directory" + own},
                          {"link", "a symbolic link" + own},
                          {"fifo", "a special file" + own}};
  if (::geteuid() == 0 && ::lchown((folder + "/theirs").c_str(), 12345, 12345) == 0)
    cases.push_back({"theirs", "a socket of another user, uid 12345"});
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const std::string path = folder + "/" + c.name;
    Error error;
    Fd socket;
    os::SocketFile file;
    CHECK(os::listen_at(path, socket, file, error) == FEEDLANE_E_OS);
    CHECK(error.os_errno == EADDRINUSE);
    const std::string text = "there is " + c.what + " at " + path + ": remove it, or choose another path";
    CHECK_MESSAGE(std::string(error.text).starts_with(text), error.text);
    CHECK(os::connect_to(path, Deadline::after(0), socket, error) < 0);
    CHECK_MESSAGE(std::string(error.text).starts_with("connecting to " + path + ", which is " + c.what), error.text);
    struct stat status {};
    CHECK(::lstat(path.c_str(), &status) == 0);
  }
}

TEST_CASE("a user unknown to the user namespace is treated as another user, although both have the same uid there") {
  if (::geteuid() != 0) return feedlane::test::skip("root, to be two users");
  const Place place;
  REQUIRE(::chmod(place.folder.path().c_str(), 0755) == 0);
  feedlane::test::Pipe ready, over;
  const pid_t other = feedlane::test::fork_child([&] {
    over.write.reset();
    REQUIRE(::chown(place.folder.path().c_str(), 23456, 23456) == 0);
    REQUIRE(::setgid(23456) == 0);
    REQUIRE(::setuid(23456) == 0);
    const Fd listener = must_listen(place.path());
    REQUIRE(::chmod(place.path().c_str(), 0777) == 0);
    char byte = 'x';
    (void)!::write(ready.write.get(), &byte, 1);
    (void)!::read(over.read.get(), &byte, 1);
  });
  ready.write.reset();
  char byte = 0;
  REQUIRE(::read(ready.read.get(), &byte, 1) == 1);
  const int found = feedlane::test::in_child([&] {
    if (::setgid(12345) != 0 || ::setuid(12345) != 0) return 1;
    if (::unshare(CLONE_NEWUSER) != 0) return 77;
    Error error;
    Fd socket;
    if (os::connect_to(place.path(), Deadline::after(0), socket, error) != FEEDLANE_E_STATE) return 2;
    return error.found == error.needed ? 0 : 3;  // 65534 both
  });
  over.write.reset();
  CHECK(feedlane::test::wait_for_end(other) == 0);
  if (found == 77) return feedlane::test::skip("a user namespace");
  CHECK(found == 0);
}

TEST_CASE("connecting to a path without a listener fails with E_PEER_DEAD") {
  const Place place;
  Error error;
  Fd socket;
  CHECK(os::connect_to(place.path(), Deadline::after(0), socket, error) == FEEDLANE_E_PEER_DEAD);
  (void)must_listen(place.path());  // and closed again: its path stays
  CHECK(os::connect_to(place.path(), Deadline::after(0), socket, error) == FEEDLANE_E_PEER_DEAD);
  CHECK_FALSE(socket);
}

TEST_CASE("connect_to waits for a path that is bound but does not listen yet") {
  const Place place;
  const Fd folder(::open(place.folder.path().c_str(), O_RDONLY | O_DIRECTORY));
  REQUIRE(::flock(folder.get(), LOCK_EX) == 0);  // as listen_at does
  const Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, place.path().c_str());
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  Fd socket;
  Error error;
  CHECK_MESSAGE(os::connect_to(place.path(), Deadline::after(0), socket, error) == FEEDLANE_E_PEER_DEAD,
                "no time to wait");
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the connection is tried meanwhile, or not
    (void)::listen(listener.get(), 1);
    (void)::flock(folder.get(), LOCK_UN);
  });
  const Status s = os::connect_to(place.path(), Deadline::never(), socket, error);
  other.join();
  CHECK_MESSAGE(s == FEEDLANE_OK, error.text);
}

TEST_CASE("a path that is too long for an address is refused with both lengths") {
  Error error;
  Fd socket;
  os::SocketFile file;
  constexpr auto most = static_cast<std::int64_t>(sizeof(sockaddr_un::sun_path)) - 1;
  for (const std::size_t length : {std::size_t{0}, std::size_t{most + 1}, std::size_t{5000}}) {
    const std::string path(length, 'x');
    CHECK(os::listen_at(path, socket, file, error) == FEEDLANE_E_ARGUMENT);
    CHECK(os::connect_to(path, Deadline::after(0), socket, error) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(error.argument) == "path");
    CHECK(error.found == static_cast<std::int64_t>(length));
    CHECK(error.needed == most);
  }
}

TEST_CASE("a wait for a message ends with the message, at the deadline or when the other end closes, not by a signal") {
  Fd mine, theirs;
  Error error;
  REQUIRE(os::create_socket_pair(mine, theirs, error) == FEEDLANE_OK);
  std::array<std::byte, 16> buffer{};
  Received received;
  CHECK(os::await_message(mine.get(), buffer, Deadline::after(0), received, error) == FEEDLANE_TIMEOUT);
  {
    const feedlane::test::Signals signals(INT32_MAX);
    CHECK(os::await_message(mine.get(), buffer, Deadline::after(3'000'000), received, error) == FEEDLANE_TIMEOUT);
  }
  const char text[] = "late";
  CHECK(os::send_message(theirs.get(), std::as_bytes(std::span(text)), {}, error) == FEEDLANE_OK);
  CHECK(os::await_message(mine.get(), buffer, Deadline::never(), received, error) == FEEDLANE_OK);
  theirs.reset();
  CHECK(os::await_message(mine.get(), buffer, Deadline::never(), received, error) == FEEDLANE_E_PEER_DEAD);
}

// promise: feeder-killed-starting
TEST_CASE("the path of a process that has ended is replaced, although its child still has the descriptor") {
  const Place place;
  feedlane::test::Pipe held, ready;
  const pid_t child = feedlane::test::fork_child([&] {
    const Fd listener = must_listen(place.path());
    if (::fork() == 0) {  // as a program that is about to exec
      held.write.reset();
      char byte = 'x';
      (void)!::write(ready.write.get(), &byte, 1);
      (void)!::read(held.read.get(), &byte, 1);
    }
  });
  ready.write.reset();
  CHECK(feedlane::test::wait_for_end(child) == 0);
  char byte = 0;
  REQUIRE(::read(ready.read.get(), &byte, 1) == 1);
  const Fd mine = must_listen(place.path());
  Error error;
  Fd socket;
  CHECK(os::connect_to(place.path(), Deadline::after(0), socket, error) == FEEDLANE_OK);
}

TEST_CASE("if two processes listen at a stale path at the same time, one of them is refused") {
  const Place place;
  for (int round = 0; round < 300; round++) {
    CAPTURE(round);
    (void)must_listen(place.path());  // and closed again
    feedlane::test::Pipe begin, held;
    std::array<feedlane::test::Pipe, 2> answers;
    std::array<pid_t, 2> children{};
    for (std::size_t i = 0; i < 2; i++)
      children[i] = feedlane::test::fork_child([&] {
        begin.write.reset();
        held.write.reset();
        Fd listener;
        os::SocketFile file;
        Error error;
        char byte = 0;
        (void)!::read(begin.read.get(), &byte, 1);
        byte = os::listen_at(place.path(), listener, file, error) == FEEDLANE_OK ? 'y' : 'n';
        (void)!::write(answers[i].write.get(), &byte, 1);
        (void)!::read(held.read.get(), &byte, 1);  // it is there until both have tried
      });
    begin.write.reset();
    int listening = 0;
    for (auto& answer : answers) {
      char byte = 0;
      REQUIRE(::read(answer.read.get(), &byte, 1) == 1);
      if (byte == 'y') listening++;
    }
    held.write.reset();
    for (const pid_t child : children) CHECK(feedlane::test::wait_for_end(child) == 0);
    REQUIRE(listening == 1);
  }
}

TEST_CASE("listen_at waits for a directory that another process has locked, but only for a limited time") {
  const Place place;
  Fd listener;
  os::SocketFile file;
  Error error;
  const Fd directory(::open(place.folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  REQUIRE(::flock(directory.get(), LOCK_EX) == 0);
  const std::int64_t before = os::now_ns();
  CHECK(os::listen_at(place.path(), listener, file, error) == FEEDLANE_OK);
  CHECK(os::now_ns() - before > 900'000'000);
}

TEST_CASE("a path with a full backlog counts as in use, and a connection to it waits until its deadline") {
  const Place place;
  const Fd listener = must_listen(place.path());
  REQUIRE(::listen(listener.get(), 0) == 0);
  Fd waiting, socket;
  os::SocketFile file;
  Error error;
  REQUIRE(os::connect_to(place.path(), Deadline::after(0), waiting, error) == FEEDLANE_OK);
  CHECK(os::listen_at(place.path(), socket, file, error) == FEEDLANE_E_STATE);
  CHECK(os::connect_to(place.path(), Deadline::after(0), socket, error) == FEEDLANE_TIMEOUT);
  CHECK(os::connect_to(place.path(), Deadline::after(5'000'000), socket, error) == FEEDLANE_TIMEOUT);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const Fd first(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  });
  CHECK(os::connect_to(place.path(), Deadline::never(), socket, error) == FEEDLANE_OK);
  later.join();
}

TEST_CASE("the listen backlog of a path is as long as the system allows") {
  std::size_t most = 0;
  std::ifstream("/proc/sys/net/core/somaxconn") >> most;
  const Place place;
  const Fd listener = must_listen(place.path());
  std::vector<Fd> waiting(std::min<std::size_t>(most, 200));
  Error error;
  for (Fd& socket : waiting) REQUIRE(os::connect_to(place.path(), Deadline::after(0), socket, error) == FEEDLANE_OK);
}

TEST_CASE("unlink_socket removes its own socket file from any working directory and never another socket's file") {
  const Place place;
  const int findings = feedlane::test::in_child([&] {
    Fd first, second;
    os::SocketFile mine, others;
    Error error;
    int wrong = 0;
    if (::chdir(place.folder.path().c_str()) != 0 || os::listen_at("socket", first, mine, error) != FEEDLANE_OK)
      return -1;
    if (::chdir("/") != 0) return -2;
    os::unlink_socket(mine);
    if (::access(place.path().c_str(), F_OK) == 0) wrong |= 1;
    if (os::listen_at(place.path(), second, others, error) != FEEDLANE_OK) return -3;
    os::unlink_socket(mine);
    if (::access(place.path().c_str(), F_OK) != 0) wrong |= 2;
    return wrong;
  });
  CHECK(findings == 0);
}
