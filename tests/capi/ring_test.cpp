// SPDX-License-Identifier: Apache-2.0
// Standalone rings: who is let in, and who isn't; ends. And where membarrier is refused, to either end, from the start or
// later on: messages come all the same. (What they promise otherwise: tests/stress/rings_stress.cpp, tests/examples/rings_test.py.)
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "support/api.hpp"
#include "support/events.hpp"
#include "support/namespaces.hpp"
#include "support/old_kernel.hpp"
#include "support/process.hpp"
#include "support/sandbox.hpp"
#include "support/skip.hpp"
#include "support/succession.hpp"

using namespace feedlane::test;

namespace {

enum Refused { never, at_once, once_attached };

constexpr std::uint64_t messages = 600;

bool refuse(Refused when, Refused now) { return when != now || refuse_system_call(SYS_membarrier); }

// Often enough the other end sleeps before it gets what it waits for, though it looks for a while first.
void let_sleep(pid_t other, std::uint64_t message, std::uint64_t which, Findings& f) {
  if (message % 3 == which) EXPECT(f, eventually([other] { return state_of(other) != 'R'; }));
}

void send(std::int32_t fd, Refused refused, Findings& f) {
  Error e;
  feedlane_tx* tx = nullptr;
  EXPECT(f, refuse(refused, at_once));
  EXPECT(f, feedlane_tx_attach(fd, nullptr, patience_ns, &tx, nullptr, &e) == FEEDLANE_OK);
  EXPECT(f, refuse(refused, once_attached));
  for (std::uint64_t i = 0; i < messages; i++) {
    feedlane_span room{};
    let_sleep(::getppid(), i, 0, f);
    const std::int32_t s = feedlane_tx_reserve(tx, 1, patience_ns, &room, &e);
    EXPECT(f, s == FEEDLANE_OK);
    if (s != FEEDLANE_OK) return;
    *static_cast<std::uint64_t*>(room.data) = i;
    EXPECT(f, feedlane_tx_commit(tx, 1, &e) == FEEDLANE_OK);
  }
  EXPECT(f, feedlane_tx_destroy(&tx) == FEEDLANE_OK);
}

void receive(Refused refused, Refused sender_refused, Findings& f) {
  Error e;
  auto config = fresh<feedlane_ring_config>();
  config.message_bytes = 8;
  config.capacity = 2;
  feedlane_rx* rx = nullptr;
  EXPECT(f, refuse(refused, at_once));
  EXPECT(f, feedlane_rx_create(&config, &rx, &e) == FEEDLANE_OK);
  std::int32_t fd = -1;
  EXPECT(f, feedlane_rx_offer(rx, &fd, &e) == FEEDLANE_OK);
  Child sender([&](Findings& found) { send(fd, sender_refused, found); });
  (void)::close(fd);
  for (std::uint64_t i = 0; i < messages; i++) {
    feedlane_span got{};
    let_sleep(sender.pid(), i, 1, f);
    const std::int32_t s = feedlane_rx_peek(rx, 1, patience_ns, &got, &e);
    EXPECT(f, s == FEEDLANE_OK);
    if (s != FEEDLANE_OK) return;
    EXPECT(f, *static_cast<std::uint64_t*>(got.data) == i);
    EXPECT(f, feedlane_rx_release(rx, 0, 1, &e) == FEEDLANE_OK);
    if (i == 0) EXPECT(f, refuse(refused, once_attached));
  }
  feedlane_span got{};
  EXPECT(f, feedlane_rx_peek(rx, 1, patience_ns, &got, &e) == FEEDLANE_END);
  EXPECT(f, sender.finish() == "");
  EXPECT(f, feedlane_rx_destroy(&rx) == FEEDLANE_OK);
}

// A ring of one lane and four messages.
struct Ring {
  explicit Ring(const char* path = nullptr, std::uint32_t lanes = 1) {
    auto config = fresh<feedlane_ring_config>();
    config.message_bytes = 8;
    config.capacity = 4;
    config.lanes = lanes;
    config.path = path;
    (void)feedlane_rx_create(&config, &rx, nullptr);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() { (void)feedlane_rx_destroy(&rx); }
  // -1: refused.
  [[nodiscard]] std::int32_t offer() const {
    std::int32_t fd = -1;
    (void)feedlane_rx_offer(rx, &fd, nullptr);
    return fd;
  }

  feedlane_rx* rx = nullptr;
};

// A socket's path that goes with this.
struct Path {
  ~Path() { (void)::unlink(path.c_str()); }
  [[nodiscard]] const char* name() const { return path.c_str(); }
  const std::string path = "/tmp/feedlane-ring-test-" + std::to_string(::getpid());
};

// Comes by path, sends one message and leaves.
void send_one(const char* path, Findings& f) {
  feedlane_tx* tx = nullptr;
  feedlane_span room{};
  EXPECT(f, feedlane_tx_attach(-1, path, patience_ns, &tx, nullptr, nullptr) == FEEDLANE_OK);
  EXPECT(f, feedlane_tx_reserve(tx, 1, patience_ns, &room, nullptr) == FEEDLANE_OK);
  EXPECT(f, feedlane_tx_commit(tx, 1, nullptr) == FEEDLANE_OK);
  EXPECT(f, feedlane_tx_destroy(&tx) == FEEDLANE_OK);
}

// While it lives all doorbells of this process are rung before each look at a poller: a peer that rings without end.
std::vector<int> rung;
struct Ringing {
  Ringing() {
    for (const int fd : open_descriptors()) {
      char target[64] = {};
      (void)!::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target - 1);
      if (std::string(target).find("eventfd") != std::string::npos) rung.push_back(fd);
    }
  }
  Ringing(const Ringing&) = delete;
  Ringing& operator=(const Ringing&) = delete;
  ~Ringing() { rung.clear(); }
};

// A descriptor from another process; -1 if none comes.
int take(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  int fd = -1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (!wait_readable(socket) || ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr)
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

}  // namespace

// The library's, too. Most callers pass fewer arguments than it reads; the sanitizer would find the rest in their frames.
extern "C" __attribute__((no_sanitize("address"))) long syscall(long number, ...) noexcept {
  static const auto real = reinterpret_cast<long (*)(long, ...)>(::dlsym(RTLD_NEXT, "syscall"));
  long arguments[6];
  va_list list;
  va_start(list, number);
  for (long& a : arguments) a = va_arg(list, long);
  va_end(list);
  constexpr std::uint64_t nothing = 0;
  if (number == SYS_epoll_pwait2)
    for (const int fd : rung) (void)!::write(fd, &nothing, sizeof nothing);
  return real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

TEST_CASE("messages arrive if membarrier is refused to either side, at any time") {
  for (const Refused receiver : {never, at_once, once_attached})
    for (const Refused sender : {never, at_once, once_attached}) {
      CAPTURE(receiver);
      CAPTURE(sender);
      CHECK(in_child([&](Findings& f) { receive(receiver, sender, f); }) == "");
    }
}

TEST_CASE("arm fails if membarrier is refused later, because the event loop would sleep without a limit") {
  CHECK(in_child([&](Findings& f) {
          auto config = fresh<feedlane_ring_config>();
          config.message_bytes = 8;
          config.capacity = 2;
          feedlane_rx* rx = nullptr;
          EXPECT(f, feedlane_rx_create(&config, &rx, nullptr) == FEEDLANE_OK);
          EXPECT(f, feedlane_rx_arm(rx, nullptr) == FEEDLANE_OK);
          EXPECT(f, refuse_system_call(SYS_membarrier));
          EXPECT(f, feedlane_rx_arm(rx, nullptr) == FEEDLANE_E_OS);
          EXPECT(f, feedlane_rx_destroy(&rx) == FEEDLANE_OK);
          EXPECT(f, feedlane_rx_create(&config, &rx, nullptr) == FEEDLANE_OK);
          EXPECT(f, feedlane_rx_arm(rx, nullptr) == FEEDLANE_OK);
          EXPECT(f, feedlane_rx_destroy(&rx) == FEEDLANE_OK);
        }) == "");
}

TEST_CASE("attach returns only after the receiver has accepted the sender") {
  const Ring ring;
  std::int32_t fd = ring.offer();
  Child sender({fd}, [&](Findings& f) {
    feedlane_tx* tx = nullptr;
    EXPECT(f, feedlane_tx_attach(fd, nullptr, 100'000'000, &tx, nullptr, nullptr) == FEEDLANE_TIMEOUT);
    EXPECT(f, tx == nullptr);
  });
  (void)::close(fd);
  CHECK(sender.finish() == "");
  feedlane_span span{};
  CHECK(feedlane_rx_peek(ring.rx, 1, patience_ns, &span, nullptr) == FEEDLANE_END);
  // One who gave up while it was let in has left all the same: the only lane is free.
  fd = ring.offer();
  CHECK(fd >= 0);
  (void)::close(fd);
}

TEST_CASE("a sender in a PID namespace hidden from the receiver is watched by the kernel's pidfd or refused by name") {
  if (!has_pid_namespaces()) return skip("this user can't make PID namespaces");
  for (const bool is_old : {false, true}) {
    CAPTURE(is_old);
    if (!is_old && !can_name_senders()) {
      skip("this kernel has no pidfds of senders");
      continue;
    }
    // The receiver is process 1 of a namespace within ours: it sees nobody of ours.
    int pair[2] = {-1, -1};
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    Child outside([&](Findings& f) {
      const OldKernel kernel(is_old);
      EXPECT(f, ::unshare(CLONE_NEWPID) == 0);
      const std::string found = in_child([&](Findings& inner) {
        const Ring ring;
        const std::int32_t fd = ring.offer();
        EXPECT(inner, send_descriptors(pair[0], "x", {fd}));
        (void)::close(fd);
        feedlane_span span{};
        EXPECT(inner, feedlane_rx_peek(ring.rx, 1, patience_ns, &span, nullptr) == FEEDLANE_END);
        EXPECT(inner, ring.offer() >= 0);
      });
      EXPECT(f, found == "");
    });
    const int fd = take(pair[1]);
    Child sender({fd}, [&](Findings& f) {
      feedlane_tx* tx = nullptr;
      Error e;
      EXPECT(f, feedlane_tx_attach(fd, nullptr, patience_ns, &tx, nullptr, &e) ==
                    (is_old ? FEEDLANE_E_STATE : FEEDLANE_OK));
      EXPECT(f, (tx == nullptr) == is_old);
      EXPECT(f, !is_old || e.says("PID namespace"));
    });  // its end, without a word
    (void)::close(fd);
    CHECK(sender.finish() == "");
    CHECK(outside.finish() == "");
    (void)::close(pair[0]);
    (void)::close(pair[1]);
  }
}

namespace {

// Senders by offer and by path, each of which ends without a word.
void let_in_and_lose(Findings& f) {
  const Path path;
  const Ring ring(path.name());
  const std::int32_t fd = ring.offer();
  for (const bool by_path : {false, true}) {
    const Gate is_in;
    Child sender({fd, is_in.fd()}, [&](Findings& g) {
      feedlane_tx* tx = nullptr;
      const std::int32_t s =
          feedlane_tx_attach(by_path ? -1 : fd, by_path ? path.name() : nullptr, patience_ns, &tx, nullptr, nullptr);
      EXPECT(g, s == FEEDLANE_OK);
      is_in.open();
    });
    if (!by_path) (void)::close(fd);
    feedlane_span span{};
    const bool has_ended = eventually([&] {
      const bool is_over = feedlane_rx_peek(ring.rx, 1, 10'000'000, &span, nullptr) == FEEDLANE_END;
      return is_over && wait_readable(is_in.fd(), 0);
    });
    EXPECT(f, has_ended);
    EXPECT(f, sender.finish() == "");
  }
  EXPECT(f, ring.offer() >= 0);
}

}  // namespace

TEST_CASE("senders attach and their ends are seen in a PID namespace whose /proc belongs to another namespace") {
  if (!has_pid_namespaces()) return skip("this user can't make PID namespaces");
  for (const bool is_old : {false, true}) {
    CAPTURE(is_old);
    const std::string found = in_child([&](Findings& f) {
      const OldKernel kernel(is_old);
      EXPECT(f, ::unshare(CLONE_NEWPID) == 0);
      EXPECT(f, in_child(let_in_and_lose) == "");
    });
    CHECK(found == "");
  }
}

// promise: sender-no-lane
TEST_CASE("a connection that doesn't ask for a lane gets none and delays neither END nor other senders") {
  const Path path;
  const Ring ring(path.name());
  std::vector<int> bare;
  const auto connect_bare = [&](int count) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.name(), sizeof address.sun_path - 1);
    for (int i = 0; i < count; i++) {
      bare.push_back(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      CHECK(::connect(bare.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    }
  };
  feedlane_span got{};
  connect_bare(3);
  for (int i = 0; i < 3; i++) CHECK(feedlane_rx_arm(ring.rx, nullptr) == FEEDLANE_OK);  // they are in
  const std::int32_t fd = ring.offer();
  CHECK_MESSAGE(fd >= 0, "the only lane is free");
  (void)::close(fd);
  CHECK(feedlane_rx_peek(ring.rx, 1, patience_ns, &got, nullptr) == FEEDLANE_END);
  const std::size_t descriptors = open_descriptors().size();
  connect_bare(100);
  Child sender({}, [&](Findings& f) { send_one(path.name(), f); });
  std::int32_t s = FEEDLANE_END;  // each time until the sender has come
  REQUIRE(eventually([&] {
    s = feedlane_rx_peek(ring.rx, 1, patience_ns, &got, nullptr);
    return s != FEEDLANE_END;
  }));
  CHECK(s == FEEDLANE_OK);
  CHECK(feedlane_rx_release(ring.rx, got.lane, 1, nullptr) == FEEDLANE_OK);
  CHECK(sender.finish() == "");
  CHECK(feedlane_rx_peek(ring.rx, 1, patience_ns, &got, nullptr) == FEEDLANE_END);
  CHECK_MESSAGE(open_descriptors().size() < descriptors + 100 + 70, "the oldest have had to go");
  for (const int socket : bare) (void)::close(socket);
  CHECK(feedlane_rx_peek(ring.rx, 1, patience_ns, &got, nullptr) == FEEDLANE_END);
}

// promise: sender-successor
TEST_CASE("a killed sender's lane goes to one that connects before the receiver sees its end") {
  const Path path;
  const Ring ring(path.name());
  const auto attach = [&](Findings& f, const auto& then) {
    feedlane_tx* tx = nullptr;
    Error e;
    f.expect(feedlane_tx_attach(-1, path.name(), patience_ns, &tx, nullptr, &e) == FEEDLANE_OK, e.text, __LINE__);
    then();
    EXPECT(f, feedlane_tx_destroy(&tx) == FEEDLANE_OK);
  };
  check_succession(attach, [&] {
    feedlane_span none{};
    (void)feedlane_rx_peek(ring.rx, 1, 0, &none, nullptr);  // takes END
    return feedlane_rx_arm(ring.rx, nullptr) == FEEDLANE_OK;
  });
}

TEST_CASE("a sender's socket is not inherited by exec, however it was passed") {
  const Ring ring;
  const std::int32_t fd = ring.offer();
  REQUIRE(::fcntl(fd, F_SETFD, 0) == 0);
  feedlane_tx* tx = nullptr;
  REQUIRE(feedlane_tx_attach(fd, nullptr, patience_ns, &tx, nullptr, nullptr) == FEEDLANE_OK);
  CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(feedlane_tx_destroy(&tx) == FEEDLANE_OK);
}

TEST_CASE("after END the receiver may sleep and still accepts later senders") {
  const Path path;
  const Ring ring(path.name());
  std::int32_t wait_fd = -1;
  REQUIRE(wait_fd_of(ring.rx, &wait_fd) == FEEDLANE_OK);
  feedlane_span got{};
  for (int i = 0; i < 3; i++) {
    CAPTURE(i);
    CHECK(feedlane_rx_arm(ring.rx, nullptr) == FEEDLANE_OK);
    Child sender({}, [&](Findings& f) { send_one(path.name(), f); });
    CHECK(wait_readable(wait_fd));
    REQUIRE(feedlane_rx_peek(ring.rx, 1, patience_ns, &got, nullptr) == FEEDLANE_OK);
    CHECK(feedlane_rx_release(ring.rx, got.lane, 1, nullptr) == FEEDLANE_OK);
    CHECK(sender.finish() == "");
    CHECK_MESSAGE(feedlane_rx_arm(ring.rx, nullptr) == FEEDLANE_AGAIN, "the end is news");
    for (int k = 0; k < 2; k++) CHECK(feedlane_rx_peek(ring.rx, 1, patience_ns, &got, nullptr) == FEEDLANE_END);
  }
}

TEST_CASE("a sender and the listen backlog see a receiver's end although a forked child of the receiver lives") {
  const Path path;
  const Gate is_full;
  auto ring = std::make_unique<Ring>(path.name());
  const std::int32_t fd = ring->offer();
  Child sender({fd, is_full.fd()}, [&](Findings& f) {
    feedlane_tx* tx = nullptr;
    feedlane_span room{};
    EXPECT(f, feedlane_tx_attach(fd, nullptr, patience_ns, &tx, nullptr, nullptr) == FEEDLANE_OK);
    EXPECT(f, feedlane_tx_reserve(tx, 4, patience_ns, &room, nullptr) == FEEDLANE_OK);
    EXPECT(f, feedlane_tx_commit(tx, room.count, nullptr) == FEEDLANE_OK);
    is_full.open();
    EXPECT(f, feedlane_tx_reserve(tx, 1, patience_ns, &room, nullptr) == FEEDLANE_E_PEER_DEAD);
  });
  (void)::close(fd);
  feedlane_span got{};
  REQUIRE(feedlane_rx_peek(ring->rx, 1, patience_ns, &got, nullptr) == FEEDLANE_OK);
  CHECK(wait_readable(is_full.fd()));
  std::int32_t wait_fd = -1;
  REQUIRE(wait_fd_of(ring->rx, &wait_fd) == FEEDLANE_OK);
  Child at_the_door({}, [&](Findings& f) {
    feedlane_tx* tx = nullptr;
    EXPECT(f, feedlane_tx_attach(-1, path.name(), patience_ns, &tx, nullptr, nullptr) == FEEDLANE_E_PEER_DEAD);
  });
  CHECK(wait_readable(wait_fd));                           // not armed again: that would admit it
  const Child helper([](Findings&) { (void)::pause(); });  // has all descriptors
  ring.reset();
  CHECK(sender.finish() == "");
  CHECK(at_the_door.finish() == "");
}

TEST_CASE("no sender waits for a killed receiver although a forked child of the receiver lives") {
  const Path path;
  const Gate is_there;
  const Gate may_end;
  Child receiver([&](Findings&) {
    const Ring ring(path.name());
    if (::fork() == 0) {  // keeps the place to connect
      is_there.open();
      (void)wait_readable(may_end.fd());
      ::_exit(0);
    }
    (void)::pause();
  });
  REQUIRE(wait_readable(is_there.fd()));
  feedlane_tx* tx = nullptr;
  Child early({}, [&](Findings& f) {
    EXPECT(f, feedlane_tx_attach(-1, path.name(), patience_ns, &tx, nullptr, nullptr) == FEEDLANE_E_PEER_DEAD);
  });
  CHECK(eventually([&] { return state_of(early.pid()) == 'S'; }));
  (void)::kill(receiver.pid(), SIGKILL);
  CHECK(early.finish() == "");
  CHECK(feedlane_tx_attach(-1, path.name(), patience_ns, &tx, nullptr, nullptr) == FEEDLANE_E_PEER_DEAD);
  may_end.open();
}

TEST_CASE("a receiver removes its own path from any working directory and never another file") {
  CHECK(in_child([&](Findings& f) {
          const Path path;
          const std::string name = path.path.substr(path.path.rfind('/') + 1);
          EXPECT(f, ::chdir("/tmp") == 0);
          auto first = std::make_unique<Ring>(name.c_str());
          EXPECT(f, ::chdir("/") == 0);
          first.reset();
          EXPECT(f, ::access(path.name(), F_OK) != 0);
          first = std::make_unique<Ring>(path.name());
          EXPECT(f, ::unlink(path.name()) == 0);
          const Ring second(path.name());
          EXPECT(f, second.rx != nullptr);
          first.reset();
          EXPECT(f, ::access(path.name(), F_OK) == 0);
        }) == "");
}

TEST_CASE("a sender that leaves and then takes its message back does not block its lane") {
  const Ring ring;
  feedlane_tx* tx = nullptr;
  feedlane_span span{};
  REQUIRE(feedlane_tx_attach(ring.offer(), nullptr, patience_ns, &tx, nullptr, nullptr) == FEEDLANE_OK);
  REQUIRE(feedlane_tx_reserve(tx, 1, 0, &span, nullptr) == FEEDLANE_OK);
  REQUIRE(feedlane_tx_commit(tx, 1, nullptr) == FEEDLANE_OK);
  REQUIRE(feedlane_rx_peek(ring.rx, 1, patience_ns, &span, nullptr) == FEEDLANE_OK);
  REQUIRE(feedlane_tx_destroy(&tx) == FEEDLANE_OK);
  CHECK(feedlane_rx_arm(ring.rx, nullptr) == FEEDLANE_AGAIN);  // has heard of it, and the message is there
  std::memset(static_cast<std::byte*>(span.data) - 8, 0, 8);   // its sequence number
  CHECK(feedlane_rx_peek(ring.rx, 1, 100'000'000, &span, nullptr) == FEEDLANE_END);
  const std::int32_t fd = ring.offer();
  CHECK(fd >= 0);
  (void)::close(fd);
}

TEST_CASE("reserve keeps its timeout although the receiver rings without end") {
  const Ring ring;
  feedlane_tx* tx = nullptr;
  feedlane_span span{};
  REQUIRE(feedlane_tx_attach(ring.offer(), nullptr, patience_ns, &tx, nullptr, nullptr) == FEEDLANE_OK);
  REQUIRE(feedlane_tx_reserve(tx, 4, 0, &span, nullptr) == FEEDLANE_OK);
  REQUIRE(feedlane_tx_commit(tx, span.count, nullptr) == FEEDLANE_OK);
  {
    const Ringing ringing;
    for (const std::int64_t timeout_ns : {0, 1'000'000})
      CHECK(feedlane_tx_reserve(tx, 1, timeout_ns, &span, nullptr) == FEEDLANE_TIMEOUT);
  }
  REQUIRE(feedlane_tx_destroy(&tx) == FEEDLANE_OK);
}
