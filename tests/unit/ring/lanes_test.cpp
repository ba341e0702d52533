// SPDX-License-Identifier: Apache-2.0
// Several rings with one reader: order, fairness, closing.
#include "ring/lanes.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <deque>
#include <vector>

using feedlane::ring::Cells;
using feedlane::ring::Lanes;
using feedlane::ring::Producer;
using feedlane::ring::Sequence;

namespace {

constexpr std::uint32_t capacity = 4;

struct LaneMemory {
  LaneMemory() { cells = Cells{bytes, 64, capacity}; }
  alignas(64) std::byte bytes[64 * capacity] = {};
  Sequence position{0};
  Cells cells;
};

struct Fixture {
  explicit Fixture(std::uint32_t count) : memory(count) {
    for (LaneMemory& m : memory) {
      m.cells = Cells{m.bytes, 64, capacity};
      const std::uint32_t lane = lanes.add(m.cells, 0, &m.position);
      CHECK(lane + 1 == lanes.size());
    }
  }
  Producer open(std::uint32_t lane) {
    const std::uint64_t start = lanes.open(lane);
    return {memory[lane].cells, start, &memory[lane].position};
  }
  std::deque<LaneMemory> memory;  // never moves its elements
  Lanes lanes;
};

void send(Producer& producer, std::uint64_t value) {
  REQUIRE(producer.reserve(1) == 1);
  std::memcpy(producer.message(0), &value, sizeof value);
  producer.commit(1);
}

// Takes the next message: lane * 100 + value, or -1 if there is none.
std::int64_t take(Lanes& lanes) {
  const Lanes::Message m = lanes.peek();
  if (m.data == nullptr) return -1;
  std::uint64_t value = 0;
  std::memcpy(&value, m.data, sizeof value);
  lanes.release(m.lane);
  return static_cast<std::int64_t>(m.lane * 100 + value);
}

}  // namespace

TEST_CASE("peek returns nothing if there are no lanes or no messages") {
  Lanes none;
  CHECK(none.peek().data == nullptr);
  CHECK_FALSE(none.any());
  Fixture f(3);
  CHECK(take(f.lanes) == -1);
  (void)f.open(1);
  CHECK(take(f.lanes) == -1);
  CHECK_FALSE(f.lanes.any());
}

TEST_CASE("lanes are swept in round-robin order, and each lane's messages stay in order") {
  Fixture f(3);
  Producer a = f.open(0);
  Producer b = f.open(1);
  Producer c = f.open(2);
  for (std::uint64_t i = 1; i <= 3; i++) send(a, i);
  send(b, 1);
  send(c, 1);
  send(c, 2);
  CHECK(f.lanes.any());
  std::vector<std::int64_t> got;
  for (std::int64_t v = take(f.lanes); v >= 0; v = take(f.lanes)) got.push_back(v);
  CHECK(got == std::vector<std::int64_t>{1, 101, 201, 2, 202, 3});
}

TEST_CASE("a busy lane can't starve another lane") {
  Fixture f(2);
  Producer a = f.open(0);
  Producer b = f.open(1);
  send(b, 7);
  for (std::uint64_t i = 0; i < capacity; i++) send(a, i);
  int before = 0;
  for (std::int64_t v = take(f.lanes); v != 107; v = take(f.lanes)) {
    REQUIRE(v >= 0);
    before++;
    if (a.reserve(1) == 1) send(a, 50);
  }
  CHECK(before <= 1);
}

TEST_CASE("a closed lane is not swept, and its next producer starts after all messages left in it") {
  Fixture f(2);
  Producer old = f.open(0);
  send(old, 1);
  send(old, 2);
  CHECK(take(f.lanes) == 1);
  CHECK(f.lanes.peek_lane(0).data != nullptr);
  CHECK(take(f.lanes) == 2);  // what it committed is taken before the lane is closed
  f.lanes.close(0);
  CHECK_FALSE(f.lanes.is_open(0));
  send(old, 3);  // a zombie that writes on is not heard
  CHECK(take(f.lanes) == -1);
  Producer fresh = f.open(0);
  CHECK(fresh.position() == 2 + capacity);
  CHECK(take(f.lanes) == -1);
  send(fresh, 4);
  CHECK(take(f.lanes) == 4);
}

TEST_CASE("peek_lane reads one lane only") {
  Fixture f(2);
  Producer b = f.open(1);
  (void)f.open(0);
  send(b, 9);
  CHECK(f.lanes.peek_lane(0).data == nullptr);
  CHECK(f.lanes.peek_lane(1).data != nullptr);
}
