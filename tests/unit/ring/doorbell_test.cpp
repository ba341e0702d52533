// SPDX-License-Identifier: Apache-2.0
// The doorbell: who rings, who sleeps, and that no message is missed.
#include "ring/doorbell.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "os/event.hpp"
#include "os/poller.hpp"

using feedlane::os::Deadline;
using feedlane::ring::Doorbell;
using feedlane::ring::Sleeper;
using feedlane::ring::SleepFlag;

namespace {

struct Fixture {
  Fixture() {
    feedlane::Error error;
    REQUIRE(feedlane::os::create_event(event, error) == FEEDLANE_OK);
    REQUIRE(poller.open(error) == FEEDLANE_OK);
    REQUIRE(poller.add_bell(event.get(), 7, error) == FEEDLANE_OK);
    CHECK_MESSAGE(rang(), "once at first");
  }
  bool rang(Deadline until = Deadline::at(0)) {
    std::array<feedlane::os::Poller::Event, 2> events{};
    std::size_t count = 0;
    feedlane::Error error;
    return poller.wait(until, events, count, error) == FEEDLANE_OK && count == 1 && events[0].tag == 7;
  }
  feedlane::os::Fd event;
  feedlane::os::Poller poller;
  SleepFlag flag{0};
};

}  // namespace

TEST_CASE("a peer that is awake is not rung") {
  Fixture f;
  CHECK_FALSE(Doorbell(&f.flag, f.event.get()).ring());
  CHECK_FALSE(f.rang());
}

TEST_CASE("a sleeping peer is rung, and the publisher does not write the peer's sleep flag") {
  Fixture f;
  Sleeper sleeper(&f.flag);
  sleeper.prepare();
  CHECK(Doorbell(&f.flag, f.event.get()).ring());
  CHECK_MESSAGE(f.flag.load(std::memory_order_relaxed) == 1, "a publisher never writes it");
  CHECK_MESSAGE(Doorbell(&f.flag, f.event.get()).ring(),
                "a second publisher rings too: the first may have been stopped before its write");
  CHECK(f.rang());
  CHECK_MESSAGE(!f.rang(), "a ring is read once");
  sleeper.cancel();
  CHECK_FALSE(Doorbell(&f.flag, f.event.get()).ring());
  CHECK_FALSE(f.rang());
}

// A hang is what it looks like when this fails.
TEST_CASE("ringing wakes the peer and never blocks, whatever another holder does to the eventfd") {
  Fixture f;
  Sleeper(&f.flag).prepare();
  const Doorbell bell(&f.flag, f.event.get());
  REQUIRE(::fcntl(f.event.get(), F_SETFL, 0) == 0);  // it blocks from here on
  CHECK(bell.ring());
  CHECK(f.rang());
  const std::uint64_t most = UINT64_MAX - 1;
  REQUIRE(::write(f.event.get(), &most, sizeof most) == sizeof most);
  CHECK(f.rang());
  CHECK(bell.ring());
  CHECK(f.rang());
  CHECK_FALSE(f.rang());
  std::uint64_t drained = 0;
  CHECK(bell.ring());
  REQUIRE(::read(f.event.get(), &drained, sizeof drained) == sizeof drained);
  CHECK(drained == most);
  CHECK_MESSAGE(f.rang(), "a bystander drained it");
}

TEST_CASE("a ring stays pending until a later wait and wakes an event loop that polls the set") {
  Fixture f;
  Sleeper(&f.flag).prepare();
  pollfd outer{f.poller.fd(), POLLIN, 0};
  CHECK(::poll(&outer, 1, 0) == 0);
  CHECK(Doorbell(&f.flag, f.event.get()).ring());
  CHECK(::poll(&outer, 1, 0) == 1);
  CHECK(::poll(&outer, 1, 0) == 1);
  CHECK(f.rang());
  CHECK(::poll(&outer, 1, 0) == 0);
}

// Without a timeout anywhere: a lost wake-up hangs this test.
TEST_CASE("two threads that sleep after each message never miss a message") {
  Fixture there;
  Fixture back;
  constexpr std::uint32_t rounds = 20'000;
  std::atomic<std::uint32_t> ball{0};
  const auto play = [&](std::uint32_t odd, Fixture& mine, Fixture& other) {
    Sleeper sleeper(&mine.flag);
    const Doorbell bell(&other.flag, other.event.get());
    for (std::uint32_t round = odd; round < rounds; round += 2) {
      while (ball.load(std::memory_order_acquire) != round) {
        sleeper.prepare();
        if (ball.load(std::memory_order_acquire) != round) (void)mine.rang(Deadline::never());
        sleeper.cancel();
      }
      ball.store(round + 1, std::memory_order_release);
      (void)bell.ring();
    }
  };
  std::thread other([&] { play(1, back, there); });
  play(0, there, back);
  other.join();
  CHECK(ball.load() == rounds);
}
