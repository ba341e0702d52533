// SPDX-License-Identifier: Apache-2.0
// Standalone rings where membarrier is refused, to either end, from the start or later on: messages come all the same.
// (What they promise otherwise: tests/stress/rings_stress.cpp, tests/examples/rings_test.py.)
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/api.hpp"
#include "support/process.hpp"
#include "support/sandbox.hpp"

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
  EXPECT(f, feedlane_tx_attach(fd, nullptr, patience_ns, &tx, &e) == FEEDLANE_OK);
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

}  // namespace

TEST_CASE("messages come whoever is refused membarrier, and whenever") {
  for (const Refused receiver : {never, at_once, once_attached})
    for (const Refused sender : {never, at_once, once_attached}) {
      CAPTURE(receiver);
      CAPTURE(sender);
      CHECK(in_child([&](Findings& f) { receive(receiver, sender, f); }) == "");
    }
}

TEST_CASE("an event loop is told when membarrier is refused later on: it would sleep without a limit") {
  CHECK(in_child([&](Findings& f) {
          auto config = fresh<feedlane_ring_config>();
          config.message_bytes = 8;
          config.capacity = 2;
          feedlane_rx* rx = nullptr;
          EXPECT(f, feedlane_rx_create(&config, &rx, nullptr) == FEEDLANE_OK);
          EXPECT(f, feedlane_rx_arm(rx) == FEEDLANE_OK);
          EXPECT(f, refuse_system_call(SYS_membarrier));
          EXPECT(f, feedlane_rx_arm(rx) == FEEDLANE_E_OS);
          EXPECT(f, feedlane_rx_destroy(&rx) == FEEDLANE_OK);
          EXPECT(f, feedlane_rx_create(&config, &rx, nullptr) == FEEDLANE_OK);
          EXPECT(f, feedlane_rx_arm(rx) == FEEDLANE_OK);
          EXPECT(f, feedlane_rx_destroy(&rx) == FEEDLANE_OK);
        }) == "");
}
