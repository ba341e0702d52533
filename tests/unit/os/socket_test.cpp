// SPDX-License-Identifier: Apache-2.0
// Messages, descriptors and credentials over sockets.
#include "os/socket.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "os/poller.hpp"
#include "os/process.hpp"
#include "support/skip.hpp"
#include "unit/os/fixtures.hpp"

#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

using feedlane::Error;
using feedlane::Status;
using feedlane::os::Fd;
using feedlane::os::Received;
namespace os = feedlane::os;

namespace {

struct Pair {
  Pair() {
    Error error;
    REQUIRE(os::create_socket_pair(mine, theirs, error) == FEEDLANE_OK);
  }
  Fd mine, theirs;
};

Status send(const Fd& socket, std::string_view text, std::span<const int> fds = {}) {
  Error error;
  return os::send_message(socket.get(), std::as_bytes(std::span(text)), fds, error);
}

Status receive(const Fd& socket, std::string& text, Received& received, std::size_t room = 64) {
  std::vector<std::byte> buffer(room);
  Error error;
  const Status s = os::receive_message(socket.get(), buffer, received, error);
  text.assign(reinterpret_cast<const char*>(buffer.data()), std::min(received.bytes, buffer.size()));
  return s;
}

// As before Linux 6.5: messages to `socket` bring descriptors, and no pidfd.
void be_old(const Fd& socket) {
  for (const auto& [option, value] : {std::pair{SO_PASSPIDFD, 0}, {SO_PASSRIGHTS, 1}})
    (void)::setsockopt(socket.get(), SOL_SOCKET, option, &value, sizeof value);
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

// More descriptors than send_message ever takes.
void send_many(const Fd& socket, std::span<const int> fds) {
  char byte = 'x';
  iovec part{&byte, 1};
  std::vector<char> control(CMSG_SPACE(fds.size_bytes()));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  *header = {CMSG_LEN(fds.size_bytes()), SOL_SOCKET, SCM_RIGHTS};
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  REQUIRE(::sendmsg(socket.get(), &message, 0) == 1);
}

}  // namespace

TEST_CASE("messages keep their boundaries and their order") {
  const Pair pair;
  std::string text;
  Received received;
  CHECK(receive(pair.mine, text, received) == FEEDLANE_AGAIN);
  CHECK(send(pair.theirs, "one") == FEEDLANE_OK);
  CHECK(send(pair.theirs, "second") == FEEDLANE_OK);
  CHECK(receive(pair.mine, text, received) == FEEDLANE_OK);
  CHECK(text == "one");
  CHECK_FALSE(received.truncated);
  CHECK(receive(pair.mine, text, received) == FEEDLANE_OK);
  CHECK(text == "second");
  CHECK(receive(pair.mine, text, received) == FEEDLANE_AGAIN);
  CHECK(received.bytes == 0);
}

// promise: fault-exec
TEST_CASE("both ends of a socket pair are close-on-exec") {
  const Pair pair;
  CHECK((::fcntl(pair.mine.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK((::fcntl(pair.theirs.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("descriptors arrive with their message, in order and close-on-exec") {
  const Pair pair;
  const feedlane::test::Pipe pipe;
  const std::array fds{pipe.write.get(), pipe.read.get()};
  CHECK(send(pair.mine, "take", fds) == FEEDLANE_OK);
  std::string text;
  Received received;
  CHECK(receive(pair.theirs, text, received) == FEEDLANE_OK);
  REQUIRE(received.fd_count == 2);
  CHECK_FALSE(received.truncated);
  CHECK(received.fds[0].get() != pipe.write.get());
  CHECK((::fcntl(received.fds[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK((::fcntl(received.fds[1].get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(::write(received.fds[0].get(), "!", 1) == 1);
  char byte = 0;
  CHECK(::read(pipe.read.get(), &byte, 1) == 1);
  CHECK(byte == '!');
  CHECK((::fcntl(received.fds[1].get(), F_GETFL) & O_ACCMODE) == O_RDONLY);
}

TEST_CASE("the maximum number of descriptors arrives in one message, together with the sender's credentials") {
  const Pair pair;
  be_old(pair.mine);
  const std::vector<int> fds(os::max_passed_fds, pair.mine.get());
  CHECK(send(pair.theirs, "all", fds) == FEEDLANE_OK);
  std::string text;
  Received received;
  CHECK(receive(pair.mine, text, received) == FEEDLANE_OK);
  CHECK(received.fd_count == os::max_passed_fds);
  CHECK(received.pid == ::getpid());
  CHECK_FALSE(received.truncated);
}

TEST_CASE("descriptors beyond the expected number are closed, and their loss is flagged") {
  const Pair pair;
  be_old(pair.mine);
  const std::vector<int> fds(12, pair.mine.get());
  const std::size_t before = open_descriptors();
  for (const Fd* end : {&pair.mine, &pair.theirs}) {
    send_many(end == &pair.mine ? pair.theirs : pair.mine, fds);
    std::string text;
    Received received;
    CHECK(receive(*end, text, received) == FEEDLANE_OK);
    CHECK(received.fd_count == os::max_passed_fds);
    CHECK(open_descriptors() == before + os::max_passed_fds);
    if (end == &pair.mine) CHECK(received.truncated);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("the kernel reports the sender of a message, not the creator of the socket") {
  const Pair pair;
  const pid_t child = feedlane::test::fork_child([&] { (void)send(pair.theirs, "child"); });
  (void)feedlane::test::wait_for_end(child);
  CHECK(send(pair.theirs, "parent") == FEEDLANE_OK);
  std::string text;
  Received received;
  CHECK(receive(pair.mine, text, received) == FEEDLANE_OK);
  CHECK(text == "child");
  CHECK(received.pid == child);
  CHECK(receive(pair.mine, text, received) == FEEDLANE_OK);
  CHECK(received.pid == ::getpid());
  CHECK(send(pair.mine, "x") == FEEDLANE_OK);
  CHECK(receive(pair.theirs, text, received) == FEEDLANE_OK);
  CHECK_MESSAGE(received.pid == 0, "only the first end asks for credentials");
}

TEST_CASE("an end that refuses descriptors never receives one, where the kernel supports that") {
  const Pair pair;
  const int off = 0;
  if (::setsockopt(pair.theirs.get(), SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off) != 0)
    return feedlane::test::skip("this kernel can't refuse descriptors");
  const feedlane::test::Pipe pipe;
  const std::array fds{pipe.read.get()};
  Error error;
  CHECK(os::send_message(pair.theirs.get(), std::as_bytes(std::span("x", 1)), fds, error) == FEEDLANE_E_OS);
  CHECK(error.os_errno == EPERM);
  std::string text;
  Received received;
  CHECK(receive(pair.mine, text, received) == FEEDLANE_AGAIN);
}

TEST_CASE("the sender of a message is watched by the kernel's pidfd, or by a pidfd of its own that it sends") {
  for (const bool is_old : {false, true}) {
    CAPTURE(is_old);
    const Pair pair;
    if (is_old) be_old(pair.mine);
    if (!is_old && !os::names_senders(pair.mine.get())) {
      feedlane::test::skip("this kernel has no pidfds of senders");
      continue;
    }
    CHECK(os::names_senders(pair.mine.get()) != is_old);
    feedlane::test::Pipe gate;
    const pid_t child = feedlane::test::fork_child([&] {
      gate.write.reset();
      Fd self;
      Error error;
      (void)os::open_pidfd(::getpid(), self, error);
      const std::array fds{self.get()};
      (void)send(pair.theirs, "child", is_old ? std::span<const int>(fds) : std::span<const int>());
      char byte = 0;
      (void)!::read(gate.read.get(), &byte, 1);
    });
    Error error;
    CHECK(os::wait_readable(pair.mine.get(), os::Deadline::never(), error) == FEEDLANE_OK);
    std::string text;
    Received received;
    CHECK(receive(pair.mine, text, received) == FEEDLANE_OK);
    CHECK(received.pid == child);
    Fd process, expected;
    REQUIRE_MESSAGE(os::open_sender(received, process, error) == FEEDLANE_OK, error.text);
    CHECK((::fcntl(process.get(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK_FALSE(os::has_ended(process.get()));
    gate.write.reset();
    (void)feedlane::test::wait_for_end(child);
    CHECK(os::has_ended(process.get()));
  }
}

TEST_CASE("a pidfd sent by a peer is accepted only if it is the peer's own; a sender that has ended is a dead peer") {
  const Pair pair;
  be_old(pair.mine);
  const feedlane::test::Pipe pipe;
  Fd parent;
  Error error;
  REQUIRE(os::open_pidfd(::getppid(), parent, error) == FEEDLANE_OK);
  std::string text;
  Received received;
  Fd process;
  for (const int sent : {parent.get(), pipe.read.get()}) {
    const std::array fds{sent};
    CHECK(send(pair.theirs, "x", fds) == FEEDLANE_OK);
    CHECK(receive(pair.mine, text, received) == FEEDLANE_OK);
    CHECK(os::open_sender(received, process, error) == FEEDLANE_E_STATE);
  }
  CHECK(send(pair.theirs, "x") == FEEDLANE_OK);
  CHECK(receive(pair.mine, text, received) == FEEDLANE_OK);
  CHECK(os::open_sender(received, process, error) == FEEDLANE_E_STATE);
  const pid_t child = feedlane::test::fork_child([&] {
    Fd self;
    (void)os::open_pidfd(::getpid(), self, error);
    const std::array fds{self.get()};
    (void)send(pair.theirs, "x", fds);
  });
  (void)feedlane::test::wait_for_end(child);
  CHECK(receive(pair.mine, text, received) == FEEDLANE_OK);
  CHECK(os::open_sender(received, process, error) == FEEDLANE_E_PEER_DEAD);
  CHECK_FALSE(process);
}

TEST_CASE("the next message can be read without removing it") {
  Pair pair;
  std::array<std::byte, 4> start{};
  std::size_t bytes = 0;
  CHECK(os::peek_message(pair.mine.get(), start, bytes) == FEEDLANE_AGAIN);
  CHECK(send(pair.theirs, "one message") == FEEDLANE_OK);
  for (int again = 0; again < 2; again++) {
    CHECK(os::peek_message(pair.mine.get(), start, bytes) == FEEDLANE_OK);
    CHECK(bytes == 11);
    CHECK(std::memcmp(start.data(), "one ", 4) == 0);
  }
  std::string text;
  Received received;
  CHECK(receive(pair.mine, text, received) == FEEDLANE_OK);
  CHECK(text == "one message");
  pair.theirs.reset();
  CHECK(os::peek_message(pair.mine.get(), start, bytes) == FEEDLANE_OK);
  CHECK(bytes == 0);
}

TEST_CASE("the end of the connection is reported after all messages that were sent before it") {
  Pair pair;
  CHECK(send(pair.theirs, "last words") == FEEDLANE_OK);
  pair.theirs.reset();
  std::string text;
  Received received;
  CHECK(receive(pair.mine, text, received) == FEEDLANE_OK);
  CHECK(text == "last words");
  CHECK(receive(pair.mine, text, received) == FEEDLANE_END);
  CHECK(receive(pair.mine, text, received) == FEEDLANE_END);
}

TEST_CASE("an end that closes with unread messages is also reported as closed") {
  Pair pair;
  CHECK(send(pair.mine, "never read") == FEEDLANE_OK);
  pair.theirs.reset();
  std::string text;
  Received received;
  CHECK(receive(pair.mine, text, received) == FEEDLANE_END);
}

TEST_CASE("sending to a closed end fails with E_PEER_DEAD and raises no signal") {
  Pair pair;
  pair.theirs.reset();
  CHECK(send(pair.mine, "hello?") == FEEDLANE_E_PEER_DEAD);
}

TEST_CASE("a message longer than the buffer is flagged") {
  const Pair pair;
  CHECK(send(pair.theirs, "0123456789") == FEEDLANE_OK);
  std::string text;
  Received received;
  CHECK(receive(pair.mine, text, received, 4) == FEEDLANE_OK);
  CHECK(received.truncated);
  CHECK(text == "0123");
  CHECK_MESSAGE(receive(pair.mine, text, received) == FEEDLANE_AGAIN, "its rest is gone");
}

TEST_CASE("sending never blocks: a full socket fails the call") {
  const Pair pair;
  const std::string text(1 << 14, 'x');
  Error error;
  Status s = FEEDLANE_OK;
  while (s == FEEDLANE_OK) s = os::send_message(pair.mine.get(), std::as_bytes(std::span(text)), {}, error);
  CHECK(s == FEEDLANE_E_OS);
  CHECK(error.os_errno == EAGAIN);
}
