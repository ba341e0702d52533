// SPDX-License-Identifier: Apache-2.0
#include "ring/doorbell.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "os/event.hpp"

using feedlane::ring::Doorbell;
using feedlane::ring::Sleeper;
using feedlane::ring::SleepFlag;

namespace {

struct Fixture {
  Fixture() {
    feedlane::Error error;
    REQUIRE(feedlane::os::create_event(event, error) == FEEDLANE_OK);
  }
  bool rang() const {
    pollfd entry{event.get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  }
  feedlane::os::Fd event;
  SleepFlag flag{0};
};

}  // namespace

TEST_CASE("nobody rings for one who is awake") {
  Fixture f;
  CHECK_FALSE(Doorbell(&f.flag, f.event.get()).ring());
  CHECK_FALSE(f.rang());
}

TEST_CASE("a sleeper is rung, and its flag is its own") {
  Fixture f;
  Sleeper sleeper(&f.flag);
  sleeper.prepare();
  CHECK(Doorbell(&f.flag, f.event.get()).ring());
  CHECK(f.rang());
  CHECK_MESSAGE(f.flag.load(std::memory_order_relaxed) == 1, "a publisher never writes it");
  CHECK_MESSAGE(Doorbell(&f.flag, f.event.get()).ring(),
                "a second publisher rings too: the first may have been stopped before its write");
  sleeper.cancel();
  feedlane::os::drain_event(f.event.get());
  CHECK_FALSE(Doorbell(&f.flag, f.event.get()).ring());
  CHECK_FALSE(f.rang());
}

TEST_CASE("a full eventfd still wakes and blocks nobody") {
  Fixture f;
  const std::uint64_t most = UINT64_MAX - 1;
  REQUIRE(::write(f.event.get(), &most, sizeof most) == sizeof most);
  Sleeper(&f.flag).prepare();
  CHECK(Doorbell(&f.flag, f.event.get()).ring());
  CHECK(f.rang());
}

// Without a timeout anywhere: a lost wake-up hangs this test.
TEST_CASE("two threads that sleep after each message never miss one") {
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
        if (ball.load(std::memory_order_acquire) != round) {
          pollfd entry{mine.event.get(), POLLIN, 0};
          (void)::poll(&entry, 1, -1);
          feedlane::os::drain_event(mine.event.get());
        }
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
