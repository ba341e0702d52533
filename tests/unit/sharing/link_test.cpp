// SPDX-License-Identifier: Apache-2.0
// The feeder's hold on one consumer: what counts of the words that the consumer writes, whatever they say.
#include "sharing/link.hpp"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "os/poller.hpp"
#include "unit/sharing/link_fixture.hpp"

using feedlane::Error;
using feedlane::os::Deadline;
using namespace feedlane::test::linked;
namespace shm = feedlane::shm;

TEST_CASE("a consumer reads messages in the order of their delivery") {
  Fixture f;
  Parcel failed = control(7, DeliveryKind::failed);
  Error why;
  (void)why.fail(FEEDLANE_E_SAMPLE, "sample 9 is damaged");
  why.worker = 3;
  why.sample = 9;
  failed.error = std::make_shared<const Error>(why);
  failed.epoch = 2;
  CHECK(f.link.deliver(control(5, DeliveryKind::begin)));
  f.deliver(6, 2);
  CHECK(f.link.deliver(failed));
  CHECK(f.link.delivered == 1);
  CHECK(f.read().kind == static_cast<std::uint32_t>(DeliveryKind::begin));
  const DeliveryMessage batch = f.read();
  CHECK(batch.round == 6);
  CHECK(batch.slot == 2);
  CHECK(batch.batch == 6);
  const DeliveryMessage error = f.read();
  CHECK(error.round == 7);
  CHECK(error.epoch == 2);
  CHECK(error.status == FEEDLANE_E_SAMPLE);
  CHECK(error.worker == 3);
  CHECK(error.sample == 9);
  CHECK(std::string(error.text) == "sample 9 is damaged");
}

TEST_CASE("a sleeping consumer is rung for a message, for an eviction, and once for SLOTS_HELD") {
  Fixture f;
  Error error;
  feedlane::os::Poller poller;
  REQUIRE(poller.open(error) == FEEDLANE_OK);
  REQUIRE(poller.add_bell(f.link.consumer_event.get(), 7, error) == FEEDLANE_OK);
  const auto rang = [&] {
    std::array<feedlane::os::Poller::Event, 2> events{};
    std::size_t count = 0;
    return poller.wait(Deadline::at(0), events, count, error) == FEEDLANE_OK && count == 1;
  };
  CHECK_MESSAGE(rang(), "once at first");
  f.deliver(1, 0);
  CHECK_MESSAGE(!rang(), "it doesn't sleep");
  f.row().sleeping.store(1, std::memory_order_relaxed);
  f.deliver(2, 1);
  CHECK(rang());
  f.link.tell_evicted();
  CHECK(rang());
  CHECK(f.block().is_evicted.load(std::memory_order_relaxed) == 1);
  f.link.tell_short();
  CHECK(rang());
  CHECK(f.block().short_after.load(std::memory_order_relaxed) == 2);
  f.link.tell_short();
  CHECK_MESSAGE(!rang(), "nothing has changed since");
  f.give_back(0, 1);
  (void)f.collect();
  f.link.tell_short();
  CHECK(rang());
  CHECK(f.block().short_returns.load(std::memory_order_relaxed) == 1);
}

// ---- returns ----

TEST_CASE("a slot comes back when the consumer returns the round in which it was delivered") {
  Fixture f;
  f.deliver(1, 2);
  f.deliver(2, 0);
  CHECK_FALSE(f.link.has_news());
  (void)f.take();
  (void)f.take();
  check_outstanding(f, 0, 2);
  f.give_back(0, 2);
  CHECK(f.link.has_news());
  CHECK(f.collect() == Slots{0});
  CHECK_FALSE(f.link.has_news());
  check_outstanding(f, 0, 1);
  f.give_back(2, 1);
  CHECK(f.collect() == Slots{2});
  check_outstanding(f, 0, 0);
}

// promise: consumer-false-returns
TEST_CASE("returning another round or another slot has no effect, however often it is repeated") {
  Fixture f;
  f.deliver(5, 1);
  (void)f.take();
  for (const std::uint64_t round : {0u, 4u, 6u}) f.give_back(1, round);
  f.give_back(1, UINT64_MAX);
  for (const std::uint32_t slot : {0u, 2u, 3u}) f.give_back(slot, 5);
  CHECK(f.link.has_news());
  CHECK(f.collect().empty());
  check_outstanding(f, 0, 1);
  f.give_back(1, 5);
  CHECK(f.collect() == Slots{1});
  CHECK_MESSAGE(f.collect().empty(), "once");
}

TEST_CASE("returning a slot's former round does not return its next round") {
  Fixture f;
  f.deliver(1, 3);
  (void)f.take();
  f.give_back(3, 1);
  CHECK(f.collect() == Slots{3});
  f.deliver(2, 3);
  (void)f.take();
  f.give_back(3, 1);
  CHECK(f.collect().empty());
  f.give_back(3, 2);
  CHECK(f.collect() == Slots{3});
}

// ---- taken ----

TEST_CASE("a consumer that claims any position has taken no more than was delivered") {
  Fixture f;
  CHECK(f.link.taken() == 0);
  f.say_taken(UINT64_MAX);
  CHECK(f.link.taken() == 0);
  f.deliver(1, 0);
  f.deliver(2, 1);
  CHECK(f.link.taken() == 2);
  check_outstanding(f, 0, 2);
  CHECK(f.link.oldest() == 1);
}

TEST_CASE("a message without a slot is finished when it is taken, a batch when it is returned") {
  Fixture f;
  CHECK(f.link.deliver(control(1, DeliveryKind::begin)));
  f.deliver(2, 0);
  CHECK(f.link.deliver(control(3, DeliveryKind::end)));
  CHECK(f.link.oldest() == 0);
  (void)f.take();
  (void)f.collect();
  CHECK(f.link.oldest() == 1);
  (void)f.take();
  (void)f.take();
  (void)f.collect();
  CHECK_MESSAGE(f.link.oldest() == 2, "it holds that batch, and may ask for its state");
  f.give_back(0, 2);
  CHECK(f.collect() == Slots{0});
  CHECK(f.link.oldest() == 3);
}

// ---- taking back ----

// promise: consumer-stopped-taking
TEST_CASE("revoking leaves taken messages with the consumer, takes back the others in order, and is visible to it") {
  Fixture f;
  for (std::uint32_t i = 0; i < 4; i++) f.deliver(i + 1, i);
  (void)f.take();
  (void)f.take();
  CHECK(f.revoke() == Rounds{3, 4});
  CHECK(f.revoked_through() == 4);
  CHECK(f.link.taken_back == 2);
  check_outstanding(f, 0, 2);
  CHECK(f.revoke().empty());
  f.give_back(1, 2);
  CHECK(f.collect() == Slots{1});
  CHECK(f.drop() == Slots{0});
}

TEST_CASE("a revoked round stays revoked: revoked_through never decreases") {
  Fixture f;
  f.deliver(1, 0);
  f.deliver(2, 1);
  f.deliver(3, 2);
  CHECK(f.revoke() == Rounds{1, 2, 3});
  CHECK(f.revoked_through() == 3);
  CHECK(f.revoke().empty());
  CHECK(f.revoked_through() == 3);
  f.deliver(9, 0);
  CHECK_MESSAGE(f.revoked_through() == 3, "the new message isn't revoked");
  CHECK(f.revoke() == Rounds{9});
  CHECK(f.revoked_through() == 9);
}

TEST_CASE("revoking up to a round leaves later rounds, and a smaller round does not undo the revocation") {
  Fixture f(FEEDLANE_LAG_OBSERVE);
  for (std::uint32_t i = 0; i < 4; i++) f.deliver(i + 1, i);
  CHECK(f.revoke(2) == Rounds{1, 2});
  CHECK(f.revoked_through() == 2);
  CHECK(f.revoke(1).empty());
  CHECK(f.revoked_through() == 2);
  f.say_taken(3);
  Rounds waiting;
  f.link.for_each_waiting([&](const Parcel& p) { waiting.push_back(p.round); });
  CHECK(waiting == Rounds{4});
  check_outstanding(f, 1, 1);
}

// promise: consumer-claims-taken
TEST_CASE("a consumer that claims to have taken everything keeps everything until it is dropped") {
  Fixture f;
  f.deliver(1, 1);
  f.deliver(2, 3);
  CHECK(f.link.deliver(control(3, DeliveryKind::end)));
  f.say_taken(UINT64_MAX);
  CHECK(f.revoke().empty());
  CHECK(f.link.taken_back == 0);
  CHECK(f.drop() == Slots{1, 3});  // the end has no slot
  CHECK(f.drop().empty());
}

TEST_CASE("revoking takes back an observer's batches, but not its begins and ends") {
  Fixture f(FEEDLANE_LAG_OBSERVE);
  CHECK(f.link.deliver(control(1, DeliveryKind::begin)));
  f.deliver(2, 0);
  CHECK(f.link.deliver(control(3, DeliveryKind::failed)));
  CHECK(f.link.deliver(control(4, DeliveryKind::end)));
  CHECK(f.revoke() == Rounds{2, 3});
  CHECK(f.link.taken_back == 1);
  Fixture evicted(FEEDLANE_LAG_EVICT);
  CHECK(evicted.link.deliver(control(1, DeliveryKind::begin)));
  CHECK(evicted.revoke() == Rounds{1});
}

TEST_CASE("messages that were not yet sent are revoked with the others, in order") {
  Fixture f;
  for (std::uint64_t round = 1; round <= 2 * capacity; round++)
    (void)f.link.deliver(control(round, DeliveryKind::failed));
  CHECK(f.take().round == 1);
  const Rounds rounds = f.revoke();
  REQUIRE(rounds.size() == 2 * capacity - 1);
  for (std::uint64_t i = 0; i < rounds.size(); i++) CHECK(rounds[i] == i + 2);
}

// promise: consumer-claims-unread
TEST_CASE("returning a batch as unread has no effect if the batch was not revoked") {
  Fixture f;
  f.deliver(1, 2);
  CHECK(f.take().round == 1);
  f.give_back(2, 1 | shm::returned_unread);
  Slots unread;
  CHECK(f.collect(&unread).empty());
  CHECK(unread.empty());
  check_outstanding(f, 0, 1);
  f.give_back(2, 1);
  CHECK(f.collect() == Slots{2});
}

TEST_CASE("a consumer is marked short until it returns a batch, gets one, or the feeder has a free slot again") {
  Fixture f;
  f.deliver(7, 2);
  f.link.tell_short();
  CHECK(f.block().short_after.load(std::memory_order_relaxed) == 7);
  f.link.end_short();
  CHECK(f.block().short_after.load(std::memory_order_relaxed) == 0);
  f.link.tell_short();
  CHECK(f.block().short_after.load(std::memory_order_relaxed) == 7);
}

// promise: consumer-impossible-position
TEST_CASE("a consumer with an impossible position has no room and is reported as broken") {
  Fixture f;
  f.row().position.store(UINT64_MAX / 2, std::memory_order_release);
  std::uint64_t round = 0;
  while (round < 2 * capacity && f.link.has_room()) {
    f.deliver(++round, 0);
    f.give_back(0, round);
    (void)f.collect();
  }
  CHECK(round == capacity);
  CHECK(f.link.is_broken());
  f.row().position.store(round, std::memory_order_release);
  CHECK_MESSAGE(!f.link.has_room(), "for ever");
}

TEST_CASE("a consumer wants batches from skip_before on, and an impossible skip_before is handled as a number") {
  Fixture f;
  CHECK(f.link.wants(0));
  f.row().skip_before.store(3, std::memory_order_relaxed);
  CHECK_FALSE(f.link.wants(2));
  CHECK(f.link.wants(3));
  f.row().skip_before.store(UINT64_MAX, std::memory_order_relaxed);
  CHECK(f.link.wants(0));
  f.row().skip_before.store(INT64_MAX, std::memory_order_relaxed);
  CHECK_FALSE(f.link.wants(1'000'000));
}

// promise: consumer-pretends-progress
TEST_CASE("only taking or returning a batch is progress, whatever else a consumer writes") {
  Fixture f;
  f.deliver(1, 0);
  const std::uint64_t before = f.link.progress();
  (void)f.take();
  const std::uint64_t taken = f.link.progress();
  CHECK(taken != before);
  f.give_back(0, 1);
  (void)f.collect();
  const std::uint64_t returned = f.link.progress();
  CHECK(returned != taken);
  for (const std::uint64_t nonsense : {std::uint64_t{0}, std::uint64_t{7}, UINT64_MAX}) {
    f.say_taken(nonsense);
    f.row().position.store(nonsense, std::memory_order_relaxed);
    f.give_back(1, nonsense);
    (void)f.collect();
    CHECK(f.link.progress() == returned);
  }
}

TEST_CASE("a batch that was taken and then revoked is returned once and reported as unread") {
  Fixture f;
  f.deliver(5, 1);
  f.deliver(6, 2);
  f.say_taken(5);
  CHECK_MESSAGE(f.revoke() == Rounds{6}, "the consumer has taken round 5");
  CHECK_MESSAGE(f.revoked_through() == 6, "the consumer sees that round 6 is revoked");
  f.give_back(1, 6 | shm::returned_unread);
  CHECK(f.collect().empty());
  check_outstanding(f, 0, 1);
  f.give_back(1, 5 | shm::returned_unread);
  check_outstanding(f, 0, 0);
  Slots unread;
  CHECK(f.collect(&unread).empty());
  CHECK(unread == Slots{1});
  CHECK(f.collect().empty());
}
