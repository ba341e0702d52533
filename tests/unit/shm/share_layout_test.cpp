// SPDX-License-Identifier: Apache-2.0
// Where everything of a shared loader lies, and which numbers are refused.
#include "shm/share_layout.hpp"

#include <doctest/doctest.h>

#include <string>

#include "shm/plan.hpp"

using feedlane::Error;
using feedlane::Status;
namespace shm = feedlane::shm;

namespace {

Status plan(std::uint32_t slots, std::uint32_t capacity, shm::SharePlan& out, Error& error) {
  return shm::make_share_plan({slots, capacity}, out, error);
}

void check_refused(std::uint32_t slots, std::uint32_t capacity, const char* argument, std::int64_t found) {
  shm::SharePlan p;
  p.row = 77;
  Error error;
  CHECK(plan(slots, capacity, p, error) == FEEDLANE_E_LIMIT);
  CHECK(std::string(error.argument) == argument);
  CHECK(error.found == found);
  CHECK_MESSAGE(p.row == 77, "a refused plan changes nothing");
}

}  // namespace

TEST_CASE("a shared loader has 1 to max_slots slots") {
  shm::SharePlan p;
  Error error;
  CHECK(plan(1, 1, p, error) == FEEDLANE_OK);
  CHECK(plan(shm::max_slots, 1, p, error) == FEEDLANE_OK);
  check_refused(0, 64, "share.slots", 0);
  check_refused(shm::max_slots + 1, 64, "share.slots", shm::max_slots + 1);
  check_refused(UINT32_MAX, 64, "share.slots", UINT32_MAX);
}

TEST_CASE("the cell count of a delivery ring is a power of two and at most twice the maximum number of slots") {
  shm::SharePlan p;
  Error error;
  CHECK(plan(4, 2 * shm::max_slots, p, error) == FEEDLANE_OK);
  check_refused(4, 0, "share.capacity", 0);
  check_refused(4, 48, "share.capacity", 48);
  check_refused(4, 4 * shm::max_slots, "share.capacity", 4 * shm::max_slots);
}

TEST_CASE("regions of all three segments are consecutive and disjoint, and words of different writers are apart") {
  for (const std::uint32_t slots : {1u, 2u, 7u, 64u, 1000u, shm::max_slots})
    for (const std::uint32_t capacity : {1u, 64u, 2048u, 2 * shm::max_slots}) {
      CAPTURE(slots);
      CAPTURE(capacity);
      shm::SharePlan p;
      Error error;
      REQUIRE(plan(slots, capacity, p, error) == FEEDLANE_OK);
      constexpr std::uint64_t headers = sizeof(shm::SegmentHeader) + sizeof(shm::ShareGeometry);
      CHECK(p.geometry.slots == slots);
      CHECK(p.geometry.capacity == capacity);
      CHECK(p.feeder >= headers);
      CHECK(p.feeder % shm::writer_distance == 0);
      CHECK(p.entries >= p.feeder + sizeof(shm::FeederBlock));
      CHECK(p.entries % alignof(shm::CatalogueEntry) == 0);
      CHECK(p.catalogue_bytes >= p.entries + std::uint64_t{slots} * sizeof(shm::CatalogueEntry));
      CHECK(p.block >= headers);
      CHECK(p.block % shm::writer_distance == 0);
      CHECK(p.cells >= p.block + sizeof(shm::DeliveryBlock));
      CHECK(p.cells % shm::cell_line == 0);
      CHECK(p.delivery_bytes >= p.cells + std::uint64_t{capacity} * shm::delivery_cell_bytes);
      CHECK(p.row >= sizeof(shm::SegmentHeader));
      CHECK(p.row % shm::writer_distance == 0);
      CHECK(p.returned >= p.row + sizeof(shm::ConsumerRow));
      CHECK(p.returned % sizeof(shm::Word64) == 0);
      CHECK(p.returns_bytes >= p.returned + std::uint64_t{slots} * sizeof(shm::Word64));
      for (const std::uint64_t bytes : {p.catalogue_bytes, p.delivery_bytes, p.returns_bytes})
        CHECK(bytes % shm::payload_alignment == 0);
      // No more than alignment takes.
      CHECK(p.feeder - headers < shm::writer_distance);
      CHECK(p.block - headers < shm::writer_distance);
      CHECK(p.row - sizeof(shm::SegmentHeader) < shm::writer_distance);
      CHECK(p.catalogue_bytes - p.entries - std::uint64_t{slots} * sizeof(shm::CatalogueEntry) <
            shm::payload_alignment);
    }
}

TEST_CASE("a delivery cell has room for its sequence number and a message") {
  CHECK(sizeof(std::uint64_t) + sizeof(shm::DeliveryMessage) <= shm::delivery_cell_bytes);
  CHECK(shm::delivery_cell_bytes % shm::cell_line == 0);
}
