// SPDX-License-Identifier: Apache-2.0
// Senders of a standalone ring that go wild or lie: over their sockets, in their lanes, before and after their ends. What
// others commit comes whole and in order, no call waits longer than it was told to, and END comes with the processes' ends.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "channel/greeting.hpp"
#include "channel/receiver.hpp"
#include "crash/hostile.hpp"
#include "os/event.hpp"
#include "os/socket.hpp"
#include "shm/ring_layout.hpp"
#include "support/api.hpp"
#include "support/events.hpp"
#include "support/lingering.hpp"
#include "support/old_kernel.hpp"
#include "support/process.hpp"

using namespace feedlane::test;
namespace os = feedlane::os;
namespace shm = feedlane::shm;
namespace channel = feedlane::channel;
namespace ring = feedlane::ring;

namespace {

constexpr std::uint32_t capacity = 8;
constexpr std::uint64_t count = 6;  // messages of an honest sender

// Writes that AddressSanitizer would rightly report, at any place.
__attribute__((no_sanitize("address", "thread"))) void fill(std::byte* at, std::size_t bytes, int value) {
  for (std::size_t i = 0; i < bytes; i++)
    reinterpret_cast<volatile unsigned char*>(at)[i] = static_cast<unsigned char>(value);
}

struct Ring {
  explicit Ring(std::uint32_t lanes, const char* path = nullptr) {
    auto config = fresh<feedlane_ring_config>();
    config.message_bytes = 56;
    config.capacity = capacity;
    config.lanes = lanes;
    config.path = path;
    (void)feedlane_rx_create(&config, &rx, nullptr);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() { (void)feedlane_rx_destroy(&rx); }
  [[nodiscard]] std::int32_t offer() const {
    std::int32_t fd = -1;
    (void)feedlane_rx_offer(rx, &fd, nullptr);
    return fd;
  }
  std::int32_t peek(feedlane_span& got, std::int64_t timeout_ns = patience_ns) const {
    return feedlane_rx_peek(rx, capacity, timeout_ns, &got, nullptr);
  }
  // Lets in who comes, until the gate is open.
  void receive_until(const Gate& gate) const {
    feedlane_span got{};
    std::int32_t wait_fd = -1;
    (void)feedlane_rx_wait_fd(rx, &wait_fd);
    CHECK(eventually([&] {
      (void)feedlane_rx_arm(rx);
      (void)got;
      return wait_readable(gate.fd(), 0);
    }));
  }
  feedlane_rx* rx = nullptr;
};

// An honest sender's whole life: six messages with its number, then the gate; it leaves when it may.
void send_honestly(std::int32_t fd, std::uint64_t number, const Gate& is_done, const Gate& may_leave, Findings& f) {
  feedlane_tx* tx = nullptr;
  EXPECT(f, feedlane_tx_attach(fd, nullptr, patience_ns, &tx, nullptr) == FEEDLANE_OK);
  for (std::uint64_t i = 0; i < count; i++) {
    feedlane_span room{};
    EXPECT(f, feedlane_tx_reserve(tx, 1, patience_ns, &room, nullptr) == FEEDLANE_OK);
    const std::uint64_t words[7] = {number, i, ~i, i * 3, i * 5, i * 7, i * 11};
    std::memcpy(room.data, words, sizeof words);
    EXPECT(f, feedlane_tx_commit(tx, 1, nullptr) == FEEDLANE_OK);
  }
  is_done.open();
  EXPECT(f, wait_readable(may_leave.fd()));
  EXPECT(f, feedlane_tx_destroy(&tx) == FEEDLANE_OK);
}

// What a sender that speaks for itself is given: by an offer, whose welcome lies there, or by path, which has to ask.
struct Rogue {
  explicit Rogue(int fd) : socket(fd) {
    os::Received received;
    feedlane::Error error;
    if (os::receive_message(fd, bytes_of(welcome), received, error) == FEEDLANE_AGAIN) {
      say(channel::RingWord{channel::ring_asking_magic});
      (void)os::await_message(fd, bytes_of(welcome), os::Deadline::after(patience_ns), received, error);
    }
    is_welcome = welcome.magic == channel::ring_welcome_magic && received.fd_count == channel::ring_welcome_fds;
    if (!is_welcome) return;
    control = map(received.fds[channel::ring_welcome_control].get(), PROT_READ, control_bytes);
    lane = map(received.fds[channel::ring_welcome_data].get(), PROT_READ | PROT_WRITE, lane_bytes);
    receiver_event = std::move(received.fds[channel::ring_welcome_receiver_event]);
    sender_event = std::move(received.fds[channel::ring_welcome_sender_event]);
    data = std::move(received.fds[channel::ring_welcome_data]);
    shm::RingPlan plan;
    (void)shm::make_ring_plan(56, capacity, 1, plan, error);
    cells = {lane + plan.cells, plan.geometry.cell_bytes, capacity};
    sleeping = &reinterpret_cast<shm::SenderRow*>(lane + plan.sender_row)->sleeping;
  }
  template <class T>
  static std::span<std::byte> bytes_of(T& object) {
    return std::as_writable_bytes(std::span(&object, 1));
  }
  template <class T>
  void say(const T& message) const {
    (void)!::send(socket, &message, sizeof message, MSG_NOSIGNAL);
  }
  // Whether the receiver has let it in.
  [[nodiscard]] bool attach() const {
    say(channel::RingAttached{channel::ring_attached_magic, 0, 0});
    channel::RingRefused answer{};
    os::Received received;
    feedlane::Error error;
    return os::await_message(socket, bytes_of(answer), os::Deadline::after(patience_ns), received, error) ==
               FEEDLANE_OK &&
           answer.magic == channel::ring_accepted_magic;
  }
  // Commits the message at `position`, whether there is room or not.
  void commit(std::uint64_t position) const {
    const std::uint64_t words[7] = {~std::uint64_t{0}, position};
    std::memcpy(cells.message(position), words, sizeof words);
    cells.sequence(position).store(position + 1, std::memory_order_release);
  }
  void ring_bell() const { os::ring_event(receiver_event.get()); }

  int socket;
  channel::RingWelcome welcome{};
  bool is_welcome = false;
  std::byte* control = nullptr;
  std::byte* lane = nullptr;
  std::size_t control_bytes = 0;
  std::size_t lane_bytes = 0;
  ring::Cells cells;
  shm::Word32* sleeping = nullptr;
  os::Fd receiver_event;
  os::Fd sender_event;
  os::Fd data;

 private:
  static std::byte* map(int fd, int protection, std::size_t& bytes) {
    struct stat status {};
    (void)::fstat(fd, &status);
    bytes = static_cast<std::size_t>(status.st_size);
    return static_cast<std::byte*>(::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0));
  }
};

// A process that acts as a rogue, then opens the gate and stays until it is told to go.
struct RogueProcess {
  RogueProcess(int fd, const std::function<void(Rogue&, Findings&)>& act)
      : child({fd, done.fd(), may_end.fd()}, [&](Findings& f) {
          Rogue rogue(fd);
          act(rogue, f);
          done.open();
          (void)wait_readable(may_end.fd());
        }) {
    (void)::close(fd);
  }
  std::string end() {
    may_end.open();
    return child.finish();
  }
  Gate done;
  Gate may_end;
  Child child;
};

// Takes all that comes until END; of honest senders each message once, whole and in order. How many there were of others.
std::uint64_t check_honest(const Ring& ring, std::uint64_t senders) {
  std::vector<std::uint64_t> next(senders, 0);
  std::uint64_t others = 0;
  feedlane_span got{};
  std::int32_t s = FEEDLANE_OK;
  while ((s = ring.peek(got)) == FEEDLANE_OK) {
    for (std::uint32_t k = 0; k < got.count; k++) {
      std::uint64_t w[7];
      std::memcpy(w, static_cast<const std::byte*>(got.data) + k * got.stride, sizeof w);
      if (w[0] >= senders) {
        others++;
        continue;
      }
      const std::uint64_t i = next[w[0]]++;
      CHECK((w[1] == i && w[2] == ~i && w[3] == i * 3 && w[4] == i * 5 && w[5] == i * 7 && w[6] == i * 11));
    }
    CHECK(feedlane_rx_release(ring.rx, got.lane, got.count, nullptr) == FEEDLANE_OK);
    if (others > 1'000'000) break;
  }
  CHECK(s == FEEDLANE_END);
  for (const std::uint64_t n : next) CHECK(n == count);
  return others;
}

double seconds_since(std::chrono::steady_clock::time_point before) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

struct Path {
  ~Path() { (void)::unlink(path.c_str()); }
  [[nodiscard]] const char* name() const { return path.c_str(); }
  const std::string path = "/tmp/feedlane-rogue-test-" + std::to_string(::getpid());
};

}  // namespace

TEST_CASE("a sender that overwrites everything it can reach damages only its own messages") {
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

TEST_CASE("a lane's former sender can't touch what its next sender commits") {
  const Ring ring(1);
  const Gate again, gone_wild;
  const std::int32_t fd = ring.offer();
  const Gate has_left, may_end;
  Child former({fd, has_left.fd(), again.fd(), gone_wild.fd(), may_end.fd()}, [&](Findings& f) {
    const Rogue rogue(fd);
    EXPECT(f, rogue.attach());
    rogue.say(channel::RingWord{channel::ring_leaving_magic});
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

TEST_CASE("invalid cells, a flag that is always set and endless ringing cost a sender only its own messages") {
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

TEST_CASE("a lane that is refilled after its sender's end is freed at the sender's last message") {
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
    (void)feedlane_rx_arm(ring.rx);                                           // hears of the end
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

TEST_CASE("messages taken back while the caller holds them stay readable, and their lane isn't reused") {
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
    rogue.say(channel::RingWord{channel::ring_leaving_magic});
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

TEST_CASE("no message of a sender is taken before it is accepted") {
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

TEST_CASE("invalid or untimely messages on its socket cost a sender at most its lane, and others nothing") {
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
                                   channel::ring_accepted_magic,
                                   channel::ring_leaving_magic,
                                   channel::ring_full_magic,
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

TEST_CASE(
    "no descriptor of a sender reaches the receiver, not even in another socket's queue, if the kernel can refuse it") {
  if (!can_refuse_descriptors()) {
    MESSAGE("this kernel can't: not tried");
    return;
  }
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

TEST_CASE("descriptors sent by a sender are closed without blocking, if the kernel lets them through") {
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
