// SPDX-License-Identifier: Apache-2.0
// Senders of a standalone ring that act against the rules, honest ones beside them, and their receiver.
#pragma once

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

#include "channel/receiver.hpp"
#include "crash/hostile.hpp"
#include "greeting/ring.hpp"
#include "os/event.hpp"
#include "os/socket.hpp"
#include "shm/ring_layout.hpp"
#include "support/api.hpp"
#include "support/events.hpp"
#include "support/lingering.hpp"
#include "support/old_kernel.hpp"
#include "support/process.hpp"

namespace feedlane::test::rogue {

namespace os = feedlane::os;
namespace shm = feedlane::shm;
namespace channel = feedlane::channel;
namespace greeting = feedlane::greeting;
namespace ring = feedlane::ring;

constexpr std::uint32_t capacity = 8;
constexpr std::uint64_t count = 6;  // messages of an honest sender

// Writes that AddressSanitizer would rightly report, at any place.
inline __attribute__((no_sanitize("address", "thread"))) void fill(std::byte* at, std::size_t bytes, int value) {
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
    CHECK(eventually([&] {
      (void)feedlane_rx_arm(rx, nullptr);
      return wait_readable(gate.fd(), 0);
    }));
  }
  feedlane_rx* rx = nullptr;
};

// An honest sender's whole life: six messages with its number, then the gate; it leaves when it may.
inline void send_honestly(std::int32_t fd, std::uint64_t number, const Gate& is_done, const Gate& may_leave,
                          Findings& f) {
  feedlane_tx* tx = nullptr;
  EXPECT(f, feedlane_tx_attach(fd, nullptr, patience_ns, &tx, nullptr, nullptr) == FEEDLANE_OK);
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
      say(greeting::Word{channel::ring_asking_magic});
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
    greeting::Refused answer{};
    os::Received received;
    feedlane::Error error;
    return os::await_message(socket, bytes_of(answer), os::Deadline::after(patience_ns), received, error) ==
               FEEDLANE_OK &&
           answer.magic == greeting::accepted_magic;
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
inline std::uint64_t check_honest(const Ring& ring, std::uint64_t senders) {
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

inline double seconds_since(std::chrono::steady_clock::time_point before) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

struct Path {
  ~Path() { (void)::unlink(path.c_str()); }
  [[nodiscard]] const char* name() const { return path.c_str(); }
  const std::string path = "/tmp/feedlane-rogue-test-" + std::to_string(::getpid());
};

}  // namespace feedlane::test::rogue
