// SPDX-License-Identifier: Apache-2.0
// How the trainer names the members of its poller, and what monitors see of a worker.
#include "supervisor/peer.hpp"

#include <doctest/doctest.h>

#include <set>

#include "os/clock.hpp"
#include "unit/shm/segments.hpp"

using feedlane::supervisor::Peer;
using feedlane::supervisor::State;
using feedlane::supervisor::Tag;

TEST_CASE("a tag contains worker, generation and kind, and differs from all other tags") {
  std::set<std::uint64_t> tags;
  for (const std::uint32_t worker : {0u, 1u, 63u, feedlane::shm::max_workers - 1})
    for (const std::uint32_t generation : {0u, 1u, UINT32_MAX})
      for (const Tag::Kind kind : {Tag::doorbell, Tag::process, Tag::socket}) {
        const std::uint64_t packed = Tag{worker, generation, kind}.pack();
        const Tag tag = Tag::unpack(packed);
        CHECK(tag.worker == worker);
        CHECK(tag.generation == generation);
        CHECK(tag.kind == kind);
        CHECK(tags.insert(packed).second);
        CHECK_MESSAGE(packed < UINT64_MAX - 1, "the last two are the trainer's own");
      }
}

TEST_CASE("monitors see a worker's state and the time since when it has been in that state") {
  feedlane::shm::Segments segments;
  feedlane::test::create(segments);
  Peer peer;
  peer.init(1, segments);
  const feedlane::shm::TrainerRow& row = *segments.trainer_row(1);
  const auto since = [&] { return static_cast<std::int64_t>(row.state_since_ns.load(std::memory_order_relaxed)); };
  for (const State state : {State::opening, State::ready, State::none}) {
    const std::int64_t before = feedlane::os::now_ns();
    peer.set_state(state);
    CHECK(row.state.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(state));
    CHECK(peer.state() == state);
    CHECK(since() >= before);
    CHECK(since() <= feedlane::os::now_ns());
  }
}
