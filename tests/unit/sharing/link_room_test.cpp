// SPDX-License-Identifier: Apache-2.0
// What a consumer's delivery ring has no room for: what is missed, what waits and what is forgotten.
#include <doctest/doctest.h>

#include <array>
#include <utility>

#include "unit/sharing/link_fixture.hpp"

using namespace feedlane::test::linked;
namespace shm = feedlane::shm;

TEST_CASE("an observer with a full ring misses batches, and its begins and ends are sent once there is room again") {
  Fixture f(FEEDLANE_LAG_OBSERVE);
  std::uint64_t round = 0;
  while (f.link.has_room()) {
    round++;
    f.deliver(round, static_cast<std::uint32_t>(round % slots));
  }
  CHECK_MESSAGE(round <= capacity, "at most the ring's cells");
  const std::uint64_t sent = round;
  CHECK_FALSE(f.link.deliver(parcel(++round, 0)));
  CHECK(f.link.taken_back == 1);
  CHECK(f.link.deliver(control(++round, DeliveryKind::end)));
  CHECK(f.link.deliver(control(++round, DeliveryKind::begin)));
  CHECK_MESSAGE(!f.link.deliver(parcel(++round, 0)), "no batch overtakes them");
  for (std::uint64_t i = 1; i <= sent; i++) {
    const DeliveryMessage m = f.take();
    CHECK(m.round == i);
    f.give_back(m.slot, m.round);
  }
  CHECK(f.ring.peek(1) == 0);
  (void)f.collect();
  CHECK(f.take().round == sent + 2);
  CHECK(f.take().kind == static_cast<std::uint32_t>(DeliveryKind::begin));
  CHECK(f.link.has_room());
}

// promise: share-bounded
TEST_CASE("a consumer that reads nothing over many epochs gets the first and the newest epoch, whatever its lag") {
  for (const std::int32_t lag : {FEEDLANE_LAG_BLOCK, FEEDLANE_LAG_OBSERVE}) {
    CAPTURE(lag);
    Fixture f(lag);
    std::uint64_t round = 0;
    const auto tell = [&](std::int64_t epoch, DeliveryKind kind) {
      Parcel p = control(++round, kind);
      p.epoch = epoch;
      CHECK(f.link.deliver(p));
    };
    tell(0, DeliveryKind::begin);
    for (; f.link.has_room(); round++) f.deliver(round + 1, static_cast<std::uint32_t>(round % slots));
    const std::uint64_t sent = round;
    const std::size_t out = f.link.out();
    tell(0, DeliveryKind::end);
    for (std::int64_t epoch = 1; epoch <= 100; epoch++) {
      tell(epoch, DeliveryKind::begin);
      tell(epoch, epoch % 2 == 0 ? DeliveryKind::end : DeliveryKind::stopped);
      CHECK(f.link.out() <= out + 3);
    }
    for (std::uint64_t i = 1; i <= sent; i++) {
      const DeliveryMessage m = f.take();
      if (m.kind == static_cast<std::uint32_t>(DeliveryKind::batch)) f.give_back(m.slot, m.round);
    }
    (void)f.collect();
    for (const auto& [epoch, kind] :
         {std::pair{0, DeliveryKind::end}, {100, DeliveryKind::begin}, {100, DeliveryKind::end}}) {
      const DeliveryMessage m = f.take();
      CHECK(m.epoch == epoch);
      CHECK(m.kind == static_cast<std::uint32_t>(kind));
    }
    CHECK(f.ring.peek(1) == 0);
  }
}

TEST_CASE("an epoch with a failed batch is delivered whole after a time in which the consumer reads nothing") {
  Fixture f;
  std::uint64_t round = 0;
  const auto tell = [&](std::int64_t epoch, DeliveryKind kind) {
    Parcel p = control(++round, kind);
    p.epoch = epoch;
    CHECK(f.link.deliver(p));
  };
  while (f.link.has_room()) tell(0, DeliveryKind::failed);
  const std::uint64_t sent = round;
  tell(0, DeliveryKind::end);
  for (const DeliveryKind kind : {DeliveryKind::begin, DeliveryKind::failed, DeliveryKind::end}) tell(1, kind);
  tell(2, DeliveryKind::begin);
  for (std::uint64_t i = 1; i <= sent; i++) (void)f.take();
  (void)f.collect();
  for (const std::int64_t epoch : {0, 1, 1, 1, 2}) CHECK(f.take().epoch == epoch);
}

TEST_CASE("messages without room wait, need no memory if it was reserved, and are sent in order once there is room") {
  Fixture f;
  constexpr std::uint64_t messages = 3 * capacity;
  f.link.reserve(messages);
  for (std::uint64_t round = 1; round <= messages; round++) CHECK(f.link.deliver(control(round, DeliveryKind::failed)));
  CHECK_FALSE(f.link.has_room());
  CHECK(f.link.deliver(parcel(messages + 1, 3)));
  CHECK(f.link.out() == messages + 1);
  check_outstanding(f, 1, 0);
  CHECK(f.link.oldest() == 0);
  for (std::uint64_t round = 1; round <= messages + 1; round++) {
    if (f.ring.peek(1) == 0) (void)f.collect();
    CHECK(f.take().round == round);
  }
  (void)f.collect();
  CHECK(f.link.has_room());
  check_outstanding(f, 0, 1);
}
