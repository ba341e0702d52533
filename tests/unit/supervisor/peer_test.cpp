// SPDX-License-Identifier: Apache-2.0
// How the trainer names the members of its poller.
#include "supervisor/peer.hpp"

#include <doctest/doctest.h>

#include <set>

#include "shm/plan.hpp"

using feedlane::supervisor::Tag;

TEST_CASE("a tag contains worker, generation and kind, and differs from all others") {
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
