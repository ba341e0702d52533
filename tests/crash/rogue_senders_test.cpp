// SPDX-License-Identifier: Apache-2.0
// Senders of a standalone ring that go wild or lie: over their sockets, in their lanes, before and after their ends. What
// others commit comes whole and in order, no call waits longer than it was told to, and END comes with the processes' ends.
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "crash/rogue.hpp"
#include "support/skip.hpp"

using namespace feedlane::test;
using namespace feedlane::test::rogue;

// promise: sender-overwrites
TEST_CASE("a sender that overwrites all memory it can reach damages only its own messages") {
  const Ring ring(3);
  const Gate first_done, second_done, may_leave;
  const std::int32_t first_fd = ring.offer();
  const std::int32_t second_fd = ring.offer();
  Child first({first_fd, first_done.fd(), may_leave.fd()},
              [&](Findings& f) { send_honestly(first_fd, 0, first_done, may_leave, f); });
  Child second({second_fd, second_done.fd(), may_leave.fd()},
               [&](Findings& f) { send_honestly(second_fd, 1, second_done, may_leave, f); });
  (void)::close(first_fd);
  (void)::close(second_fd);
  ring.receive_until(first_done);
  ring.receive_until(second_done);
  RogueProcess wild(ring.offer(), [&](Rogue& rogue, Findings& f) {
    EXPECT(f, rogue.attach());
    EXPECT(f, ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, rogue.data.get(), 0) != MAP_FAILED);
    fill(rogue.lane, rogue.lane_bytes, 0x5a);
    // Every other thing of the ring's that this process has been given, which a library would have mapped.
    EXPECT(f, ::mprotect(rogue.control, rogue.control_bytes, PROT_READ | PROT_WRITE) != 0);
    EXPECT(f, rogue.lane_bytes < 3 * capacity * 64 + 4096);
    rogue.ring_bell();
  });
  ring.receive_until(wild.done);
  may_leave.open();
  CHECK(first.finish() == "");
  CHECK(second.finish() == "");
  CHECK(wild.end() == "");
  (void)check_honest(ring, 2);
}

// promise: sender-after-leaving
TEST_CASE("a lane's former sender can't change what the next sender of the lane commits") {
  const Ring ring(1);
  const Gate again, gone_wild;
  const std::int32_t fd = ring.offer();
  const Gate has_left, may_end;
  Child former({fd, has_left.fd(), again.fd(), gone_wild.fd(), may_end.fd()}, [&](Findings& f) {
    const Rogue rogue(fd);
    EXPECT(f, rogue.attach());
    rogue.say(greeting::Word{channel::ring_leaving_magic});
    has_left.open();
    EXPECT(f, wait_readable(again.fd()));
    fill(rogue.lane, rogue.lane_bytes, 0x5a);
    gone_wild.open();
    EXPECT(f, wait_readable(may_end.fd()));
  });
  (void)::close(fd);
  ring.receive_until(has_left);
  const Gate done, may_leave;
  std::int32_t next = -1;
  REQUIRE(eventually([&] { return (next = ring.offer()) >= 0; }));
  Child honest({next, done.fd(), may_leave.fd()}, [&](Findings& f) { send_honestly(next, 0, done, may_leave, f); });
  (void)::close(next);
  ring.receive_until(done);
  again.open();
  CHECK(wait_readable(gone_wild.fd()));
  may_leave.open();
  CHECK(honest.finish() == "");
  CHECK(check_honest(ring, 1) == 0);
  may_end.open();
  CHECK(former.finish() == "");
}

// promise: sender-impossible-numbers
TEST_CASE("invalid cells, a flag that is always set and endless ringing damage only the sender's own messages") {
  for (const int kind : {0, 1, 2, 3, 4, 5}) {
    CAPTURE(kind);
    const Ring ring(2);
    const Gate done, may_leave;
    const std::int32_t fd = ring.offer();
    RogueProcess wild(ring.offer(), [&](Rogue& rogue, Findings& f) {
      EXPECT(f, rogue.attach());
      const std::uint64_t start = rogue.welcome.start;
      std::uint64_t seed = 7;
      for (std::uint64_t p = start; p < start + capacity; p++) {
        auto& sequence = rogue.cells.sequence(p);
        switch (kind) {
          case 0: sequence.store(p + 1 + capacity); break;   // of the next lap
          case 1: sequence.store(p - 1'000'000'007); break;  // of long ago
          case 2: sequence.store(UINT64_MAX); break;         // of the end of time
          case 3:
            if (p != start) sequence.store(p + 1);
            break;                                   // all but the first
          case 4: sequence.store(start + 1); break;  // all the same
          default: sequence.store(seed = seed * 6364136223846793005ULL + 1); break;
        }
      }
      rogue.sleeping->store(kind % 2 == 0 ? 1 : UINT32_MAX);
      for (int i = 0; i < 1000; i++) rogue.ring_bell();
    });
    ring.receive_until(wild.done);
    feedlane_span got{};
    const auto start = std::chrono::steady_clock::now();
    while (ring.peek(got, 0) == FEEDLANE_OK) (void)feedlane_rx_release(ring.rx, got.lane, got.count, nullptr);
    CHECK(seconds_since(start) < 10);
    Child honest({fd, done.fd(), may_leave.fd()}, [&](Findings& f) { send_honestly(fd, 0, done, may_leave, f); });
    (void)::close(fd);
    ring.receive_until(done);
    may_leave.open();
    CHECK(honest.finish() == "");
    CHECK(wild.end() == "");
    CHECK(check_honest(ring, 1) <= capacity);
  }
}

// promise: sender-refilled-lane
TEST_CASE("a lane that another process refills after its sender's end is freed at the sender's last message") {
  const Ring ring(1);
  const std::int32_t fd = ring.offer();
  const Rogue rogue(fd);  // somebody else who has the lane too: this process
  const Gate is_in;
  Child sender({fd, is_in.fd()}, [&](Findings& f) {
    EXPECT(f, rogue.attach());
    is_in.open();
  });
  ring.receive_until(is_in);
  CHECK(sender.finish() == "");
  std::uint64_t next = rogue.welcome.start;
  for (std::uint32_t i = 0; i < capacity; i++) rogue.commit(next++);
  feedlane_span got{};
  std::int32_t s = FEEDLANE_OK;
  std::uint64_t taken = 0;
  for (int i = 0; i < 100 && s == FEEDLANE_OK; i++) {
    (void)feedlane_rx_arm(ring.rx, nullptr);                                  // hears of the end
    s = feedlane_rx_peek(ring.rx, capacity / 2, patience_ns, &got, nullptr);  // there are always some left
    if (s != FEEDLANE_OK) break;
    taken += got.count;
    CHECK(feedlane_rx_release(ring.rx, got.lane, got.count, nullptr) == FEEDLANE_OK);
    for (std::uint32_t k = 0; k < got.count; k++) rogue.commit(next++);
  }
  CHECK(s == FEEDLANE_END);
  CHECK(taken <= 2 * capacity);
  const std::int32_t free_lane = ring.offer();
  CHECK(free_lane >= 0);
  (void)::close(free_lane);
  (void)::close(fd);
}

// promise: sender-takes-back
TEST_CASE("messages that a sender takes back while the receiver holds them stay readable, and the lane isn't reused") {
  const Ring ring(1);
  const Gate take_back, taken;
  const std::int32_t fd = ring.offer();
  const Gate committed, may_end;
  Child sender({fd, committed.fd(), take_back.fd(), taken.fd(), may_end.fd()}, [&](Findings& f) {
    const Rogue rogue(fd);
    EXPECT(f, rogue.attach());
    for (std::uint64_t p = 0; p < 4; p++) rogue.commit(rogue.welcome.start + p);
    committed.open();
    EXPECT(f, wait_readable(take_back.fd()));
    for (std::uint64_t p = 0; p < 4; p++) rogue.cells.sequence(rogue.welcome.start + p).store(0);
    rogue.say(greeting::Word{channel::ring_leaving_magic});
    taken.open();
    EXPECT(f, wait_readable(may_end.fd()));
  });
  (void)::close(fd);
  ring.receive_until(committed);
  feedlane_span got{};
  REQUIRE(ring.peek(got) == FEEDLANE_OK);
  CHECK(got.count == 4);
  take_back.open();
  CHECK(wait_readable(taken.fd()));
  std::uint64_t word = 0;
  for (int i = 0; i < 3; i++) {
    CHECK(ring.offer() < 0);
    std::memcpy(&word, static_cast<const std::byte*>(got.data) + 3 * got.stride, sizeof word);
    CHECK(word == ~std::uint64_t{0});
  }
  feedlane_span none{};
  CHECK(ring.peek(none) == FEEDLANE_END);  // now they are nobody's
  std::memcpy(&word, static_cast<const std::byte*>(got.data) + 3 * got.stride, sizeof word);
  const std::int32_t next = ring.offer();
  CHECK(next >= 0);
  (void)::close(next);
  may_end.open();
  CHECK(sender.finish() == "");
}

// promise: sender-early-commit
TEST_CASE("no message of a sender is received before the sender is accepted") {
  const Ring ring(2);
  const std::int32_t held = ring.offer();
  RogueProcess early(ring.offer(), [&](Rogue& rogue, Findings&) {
    for (std::uint64_t p = 0; p < 4; p++) rogue.commit(rogue.welcome.start + p);
    rogue.ring_bell();
  });
  CHECK(wait_readable(early.done.fd()));
  feedlane_span got{};
  CHECK(ring.peek(got, 1'000'000) == FEEDLANE_TIMEOUT);
  CHECK(early.end() == "");
  (void)::close(held);
  CHECK(ring.peek(got) == FEEDLANE_END);
}

// promise: sender-invalid-message
TEST_CASE("invalid or untimely socket messages cost a sender at most its own lane and do not affect other senders") {
  const Path path;
  const Ring ring(2, path.name());
  std::uint64_t seed = 1;
  feedlane_span got{};
  for (int round = 0; round < 60; round++) {
    CAPTURE(round);
    const bool by_path = round % 2 == 1;
    const bool attached_first = round % 3 == 0;
    const std::size_t lengths[] = {1, 7, 8, 9, 15, 16, 17, 24, 64, 4096};
    const std::uint64_t words[] = {0,
                                   ~std::uint64_t{0},
                                   channel::ring_asking_magic,
                                   channel::ring_attached_magic,
                                   greeting::accepted_magic,
                                   channel::ring_leaving_magic,
                                   greeting::refused_magic,
                                   channel::ring_welcome_magic};
    const std::int32_t fd = by_path ? ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : ring.offer();
    REQUIRE(fd >= 0);
    const Gate done;
    Child child({fd, done.fd()}, [&](Findings& f) {
      if (by_path) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, path.name(), sizeof address.sun_path - 1);
        EXPECT(f, ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
      }
      if (attached_first) EXPECT(f, Rogue(fd).attach());
      for (int i = 0; i < 4; i++) {
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL + static_cast<std::uint64_t>(round);
        std::vector<std::byte> bytes(lengths[(seed >> 33) % 10]);
        const std::uint64_t word = words[(seed >> 40) % 8];
        std::memcpy(bytes.data(), &word, std::min(bytes.size(), sizeof word));
        (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      }
      done.open();
    });
    (void)::close(fd);
    const auto start = std::chrono::steady_clock::now();
    ring.receive_until(done);
    CHECK(child.finish() == "");
    std::int32_t s = FEEDLANE_OK;
    CHECK(eventually([&] { return (s = ring.peek(got, 0)) != FEEDLANE_TIMEOUT; }));
    CHECK((s == FEEDLANE_END || round == 1));  // by path, and nobody has come yet
    CHECK(seconds_since(start) < 20);
  }
  const Gate done, may_leave;
  may_leave.open();
  const std::int32_t fd = ring.offer();
  Child honest({fd, done.fd(), may_leave.fd()}, [&](Findings& f) { send_honestly(fd, 0, done, may_leave, f); });
  (void)::close(fd);
  CHECK(check_honest(ring, 1) == 0);
  CHECK(honest.finish() == "");
}

// promise: sender-slow-descriptors
TEST_CASE("no descriptor sent by a sender reaches the receiver, even in another socket, if the kernel can refuse it") {
  if (!can_refuse_descriptors()) return skip("this kernel can't refuse descriptors");
  const Path path;
  const Ring ring(2, path.name());
  const std::int32_t offered = ring.offer();
  const std::int32_t connected = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.name(), sizeof address.sun_path - 1);
  REQUIRE(::connect(connected, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  for (const bool is_nested : {false, true})
    for (const int fd : {offered, connected}) {
      const Lingering lingering(is_nested);
      CHECK_FALSE(send_descriptors(fd, "nonsense", {lingering.fd()}));
    }
  for (const int fd : {offered, connected}) (void)::close(fd);
  feedlane_span got{};
  CHECK(ring.peek(got) == FEEDLANE_END);
}

// promise: sender-linger-socket
TEST_CASE("descriptors that a sender sends are closed without blocking, if the kernel lets them through") {
  const OldKernel old_kernel;
  const Path path;
  const Ring ring(2, path.name());
  for (const bool by_path : {false, true}) {
    CAPTURE(by_path);
    const std::int32_t fd = by_path ? ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : ring.offer();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.name(), sizeof address.sun_path - 1);
    if (by_path) REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    const std::vector<int> pair = lingering_pair();
    REQUIRE(pair.size() == 2);
    CHECK(send_descriptors(fd, "nonsense", {pair[0]}));
    (void)::close(pair[0]);
    feedlane_span got{};
    const auto start = std::chrono::steady_clock::now();
    CHECK(ring.peek(got) == FEEDLANE_END);
    CHECK(seconds_since(start) < 10);
    (void)::close(pair[1]);
    (void)::close(fd);
  }
}
