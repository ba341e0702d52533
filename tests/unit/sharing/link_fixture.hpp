// SPDX-License-Identifier: Apache-2.0
// A feeder's link, and a consumer that does what a test says.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "feedlane/share.h"
#include "ring/spsc.hpp"
#include "sharing/link.hpp"

namespace feedlane::test::linked {

using sharing::Link;
using sharing::Parcel;
using shm::DeliveryKind;
using shm::DeliveryMessage;

using Slots = std::vector<std::uint32_t>;
using Rounds = std::vector<std::uint64_t>;
constexpr std::uint32_t slots = 4, capacity = 16;

inline Parcel parcel(std::uint64_t round, std::uint32_t slot) {
  Parcel p;
  p.round = round;
  p.slot = slot;
  p.batch = static_cast<std::int64_t>(round);
  return p;
}

inline Parcel control(std::uint64_t round, DeliveryKind kind) {
  Parcel p = parcel(round, 0);
  p.kind = kind;
  return p;
}

// A link, and a consumer that does what the test says, with its own mapping of the segments.
struct Fixture {
  explicit Fixture(std::int32_t lag = FEEDLANE_LAG_BLOCK) : link(1, 0, lag, 0) {
    Error error;
    REQUIRE(shm::make_share_plan({slots, capacity}, plan, error) == FEEDLANE_OK);
    Status s = link.create(plan, {}, error);
    REQUIRE_MESSAGE(s == FEEDLANE_OK, error.text);
    s = mine.attach(shm::SegmentKind::share_delivery, link.segments().control_fd(), link.segments().data_fd(),
                    shm::Access::read_write, error);
    REQUIRE_MESSAGE(s == FEEDLANE_OK, error.text);
    ring = feedlane::ring::Consumer({mine.control<std::byte>(plan.cells), shm::delivery_cell_bytes, capacity}, 0,
                                    &row().position);
  }
  [[nodiscard]] shm::ConsumerRow& row() const { return *mine.data<shm::ConsumerRow>(plan.row); }
  [[nodiscard]] const shm::DeliveryBlock& block() const { return *mine.control<shm::DeliveryBlock>(plan.block); }
  [[nodiscard]] shm::Word64& returned(std::uint32_t slot) const { return mine.data<shm::Word64>(plan.returned)[slot]; }

  // Reads the next message without saying that it was taken.
  DeliveryMessage read() {
    REQUIRE(ring.peek(1) == 1);
    const auto message = *reinterpret_cast<const DeliveryMessage*>(ring.message(0));
    ring.release(1);
    return message;
  }
  void say_taken(std::uint64_t round) const { row().taken.store(round, std::memory_order_release); }
  DeliveryMessage take() {
    const DeliveryMessage message = read();
    say_taken(message.round);
    return message;
  }
  void give_back(std::uint32_t slot, std::uint64_t round) const {
    returned(slot).store(round, std::memory_order_release);
    row().returns.fetch_add(1, std::memory_order_release);
  }

  void deliver(std::uint64_t round, std::uint32_t slot) { REQUIRE(link.deliver(parcel(round, slot))); }
  // Slots that were returned after they were read, and, into `unread`, those that were not.
  Slots collect(Slots* unread = nullptr) {
    Slots freed;
    link.collect([&](const Parcel& p, bool is_unread) {
      REQUIRE((!is_unread || unread != nullptr));
      (is_unread ? *unread : freed).push_back(p.slot);
    });
    return freed;
  }
  Rounds revoke() {
    Rounds rounds;
    link.revoke([&](const Parcel& p) { rounds.push_back(p.round); });
    return rounds;
  }
  Rounds revoke(std::uint64_t round) {
    Rounds rounds;
    link.revoke(round, [&](const Parcel& p) { rounds.push_back(p.round); });
    return rounds;
  }
  Slots drop() {
    Slots freed;
    link.drop([&](std::uint32_t slot) { freed.push_back(slot); });
    return freed;
  }
  [[nodiscard]] std::uint64_t revoked_through() const {
    return block().revoked_through.load(std::memory_order_relaxed);
  }

  shm::SharePlan plan;
  Link link;
  shm::SegmentPair mine;
  feedlane::ring::Consumer ring;
};

inline void check_outstanding(const Fixture& f, std::uint64_t waiting, std::uint64_t held) {
  const Link::Outstanding its = f.link.outstanding();
  CHECK(its.waiting == waiting);
  CHECK(its.held == held);
}

}  // namespace feedlane::test::linked
