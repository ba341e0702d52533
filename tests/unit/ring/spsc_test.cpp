// SPDX-License-Identifier: Apache-2.0
// One case for each state of the ring, each at positions around 0, 2^32 and 2^64.
#include "ring/spsc.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

using feedlane::ring::Cells;
using feedlane::ring::Consumer;
using feedlane::ring::Producer;
using feedlane::ring::Sequence;

namespace {

constexpr std::uint32_t capacity = 8;
constexpr std::uint64_t starts[] = {0,
                                    3,
                                    (std::uint64_t{1} << 32) - 3,
                                    std::uint64_t{1} << 32,
                                    (std::uint64_t{1} << 63) - 5,
                                    std::uint64_t{0} - 1,
                                    std::uint64_t{0} - 4,
                                    std::uint64_t{0} - capacity};

struct Ring {
  explicit Ring(std::uint64_t start, std::uint32_t cell_bytes = 64)
      : memory(cell_bytes / 64 * capacity), cells{memory.front().bytes, cell_bytes, capacity} {
    cells.format(start);
    consumer = Consumer(cells, start, &position);
    producer = Producer(cells, start, &position);
  }
  // Sends `value` if there is room.
  bool send(std::uint64_t value) {
    if (producer.reserve(1) == 0) return false;
    std::memcpy(producer.message(0), &value, sizeof value);
    producer.commit(1);
    return true;
  }
  std::uint64_t front(std::uint32_t index = 0) const {
    std::uint64_t value = 0;
    std::memcpy(&value, consumer.message(index), sizeof value);
    return value;
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory;
  Cells cells;
  alignas(128) Sequence position{0};
  Consumer consumer;
  Producer producer;
};

}  // namespace

// promise: prefetch-look-ahead
TEST_CASE("the consumer sees each committed cell by its distance, also beyond the end of the memory") {
  for (const std::uint64_t start : starts) {
    Ring r(start);
    for (std::uint32_t filled = 0; filled <= capacity; filled++) {
      for (std::uint32_t i = 0; i < capacity; i++) {
        CHECK(r.consumer.is_committed(i) == (i < filled));
        if (i < filled) CHECK(r.front(i) == 100 + i);
      }
      CHECK(r.send(100 + filled) == (filled < capacity));
    }
    r.consumer.release(3);
    for (std::uint32_t i = 0; i < capacity; i++) CHECK(r.consumer.is_committed(i) == (i < capacity - 3));
    CHECK(r.front(0) == 103);
  }
}

TEST_CASE("an empty ring has nothing to peek, and all cells up to the memory's end can be reserved") {
  for (const std::uint64_t start : starts) {
    CAPTURE(start);
    Ring ring(start);
    CHECK(ring.consumer.peek(1) == 0);
    CHECK(ring.consumer.peek(capacity) == 0);
    CHECK(ring.producer.reserve(capacity) == capacity - start % capacity);
  }
}

TEST_CASE("reserved messages are not seen before they are committed") {
  for (const std::uint64_t start : starts) {
    Ring ring(start);
    REQUIRE(ring.producer.reserve(1) == 1);
    std::memset(ring.producer.message(0), 0xff, ring.cells.message_bytes());
    CHECK(ring.consumer.peek(1) == 0);
  }
}

TEST_CASE("a committed message is seen once, with its content") {
  for (const std::uint64_t start : starts) {
    CAPTURE(start);
    Ring ring(start);
    REQUIRE(ring.send(42));
    REQUIRE(ring.consumer.peek(capacity) == 1);
    CHECK(ring.front() == 42);
    CHECK_MESSAGE(ring.consumer.peek(1) == 1, "peek takes nothing away");
    ring.consumer.release(1);
    CHECK(ring.consumer.peek(1) == 0);
    CHECK(ring.position.load(std::memory_order_relaxed) == start + 1);
  }
}

TEST_CASE("a full ring accepts nothing until the consumer releases cells, and then exactly as many as it released") {
  for (const std::uint64_t start : starts) {
    CAPTURE(start);
    Ring ring(start);
    for (std::uint64_t i = 0; i < capacity; i++) REQUIRE(ring.send(i));
    CHECK_FALSE(ring.send(99));
    CHECK(ring.producer.reserve(capacity) == 0);
    REQUIRE(ring.consumer.peek(1) == 1);
    ring.consumer.release(1);
    CHECK(ring.producer.reserve(capacity) == 1);
    CHECK(ring.send(capacity));
    CHECK_FALSE(ring.send(99));
    for (std::uint64_t i = 1; i <= capacity; i++) {
      REQUIRE(ring.consumer.peek(1) == 1);
      CHECK(ring.front() == i);
      ring.consumer.release(1);
    }
  }
}

TEST_CASE("messages keep their order and content over many laps and when the position wraps") {
  for (const std::uint64_t start : starts) {
    CAPTURE(start);
    Ring ring(start);
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;
    for (std::uint64_t step = 0; taken < 20 * capacity; step++) {
      for (std::uint64_t i = 0; i < step % 5 && ring.send(sent); i++) sent++;
      for (std::uint64_t i = 0; i < step % 3 && ring.consumer.peek(1) == 1; i++) {
        REQUIRE(ring.front() == taken++);
        ring.consumer.release(1);
      }
      REQUIRE(sent - taken <= capacity);
    }
  }
}

TEST_CASE("reserve and peek stop at the memory's end, and messages are one cell apart") {
  for (const std::uint64_t start : starts) {
    CAPTURE(start);
    Ring ring(start);
    const auto until_end = static_cast<std::uint32_t>(capacity - start % capacity);
    REQUIRE(ring.producer.reserve(capacity) == until_end);
    for (std::uint32_t i = 0; i < until_end; i++) {
      CHECK(ring.producer.message(i) == ring.producer.message(0) + std::size_t{i} * 64);
      std::memcpy(ring.producer.message(i), &i, sizeof i);
    }
    ring.producer.commit(until_end);
    CHECK(ring.producer.reserve(capacity) == capacity - until_end);
    CHECK(ring.consumer.peek(capacity) == until_end);
    ring.consumer.release(until_end);
    CHECK(ring.consumer.peek(capacity) == 0);
  }
}

TEST_CASE("fewer messages may be committed than reserved") {
  Ring ring(0);
  REQUIRE(ring.producer.reserve(4) == 4);
  ring.producer.commit(2);
  CHECK(ring.consumer.peek(4) == 2);
  ring.producer.commit(0);
  CHECK(ring.consumer.peek(4) == 2);
}

TEST_CASE("a producer without access to the consumer's position counts free cells itself") {
  Ring ring(0);
  Producer counting(ring.cells, 0, nullptr);
  CHECK(counting.reserve(capacity) == capacity);
  CHECK(counting.reserve(3) == 3);
}

TEST_CASE("an impossible consumer position is detected, and no cell is overwritten") {
  for (const std::uint64_t start : starts) {
    for (const std::uint64_t lie : {start + 1, start - 1, start + (std::uint64_t{1} << 40), start - capacity - 1}) {
      CAPTURE(start);
      CAPTURE(lie);
      Ring ring(start);
      // The ring is full, so that the producer has to look.
      for (std::uint64_t i = 0; i < capacity; i++) REQUIRE(ring.send(i));
      ring.position.store(lie == start + 1 ? start + capacity + 1 : lie, std::memory_order_relaxed);
      CHECK(ring.producer.reserve(1) == 0);
      CHECK(ring.producer.broken());
    }
  }
}

TEST_CASE("no cell left by a dead producer matches a position of the next producer") {
  for (const std::uint64_t start : starts) {
    CAPTURE(start);
    Ring ring(start);
    for (std::uint64_t i = 0; i < 5; i++) REQUIRE(ring.send(i));
    // It dies with a message half made.
    REQUIRE(ring.producer.reserve(1) == 1);
    std::memset(ring.producer.message(0), 0xee, 16);
    while (ring.consumer.peek(1) == 1) ring.consumer.release(1);
    const std::uint64_t next = ring.consumer.next_generation_start();
    CHECK(next == start + 5 + capacity);
    ring.consumer.release(capacity);
    CHECK(ring.consumer.position() == next);
    CHECK(ring.consumer.peek(capacity) == 0);
    Producer successor(ring.cells, next, &ring.position);
    REQUIRE(successor.reserve(1) == 1);
    const std::uint64_t value = 77;
    std::memcpy(successor.message(0), &value, sizeof value);
    CHECK(ring.consumer.peek(1) == 0);
    successor.commit(1);
    REQUIRE(ring.consumer.peek(1) == 1);
    CHECK(ring.front() == 77);
    // A late commit of the old one, were it alive, is not taken for the successor's.
    ring.consumer.release(1);
    ring.producer.commit(1);
    CHECK(ring.consumer.peek(1) == 0);
  }
}

TEST_CASE("a ring is reported as torn if no producer that commits one message at a time can leave its cells so") {
  for (const std::uint64_t start : starts) {
    CAPTURE(start);
    Ring ring(start);
    CHECK_MESSAGE(!ring.consumer.is_torn(capacity), "nothing was committed");
    for (std::uint64_t sent = 0; sent < 2 * capacity + 3; sent++) {  // over more than a lap
      REQUIRE(ring.send(sent));
      CHECK_FALSE(ring.consumer.is_torn(capacity));
      if (sent % 3 != 0) ring.consumer.release(1);
      while (ring.producer.reserve(1) == 0) ring.consumer.release(1);
      CHECK_FALSE(ring.consumer.is_torn(capacity));
    }
    const auto sequence_at = [&](std::uint64_t i) -> Sequence& { return ring.cells.sequence(start + i); };
    const auto is_torn_with = [&](std::uint64_t i, std::uint64_t value) {
      ring.cells.format(start);
      ring.consumer = Consumer(ring.cells, start, &ring.position);
      sequence_at(i).store(value, std::memory_order_relaxed);
      return ring.consumer.is_torn(capacity);
    };
    CHECK_MESSAGE(!is_torn_with(0, start + 1), "the first one was committed");
    CHECK_MESSAGE(is_torn_with(1, start + 2), "the second one without the first");
    CHECK_MESSAGE(is_torn_with(capacity - 1, start + capacity), "the last one alone");
    CHECK_MESSAGE(!is_torn_with(2, 0), "a cell of new memory");
    CHECK_MESSAGE(!is_torn_with(2, start + 3 - 5 * capacity), "a cell of five laps ago");
    CHECK_MESSAGE(is_torn_with(2, start + 3 - capacity - 1), "a cell of another place");
    CHECK_MESSAGE(is_torn_with(2, start + 3 + capacity), "a cell of the lap to come");
    (void)is_torn_with(2, start + 3);
    CHECK_MESSAGE(!ring.consumer.is_torn(2), "what lies behind is not looked at");
    CHECK(ring.consumer.is_torn(3));
  }
}

TEST_CASE("a cell of several cache lines transfers its whole message") {
  Ring ring(0, 192);
  CHECK(ring.cells.message_bytes() == 184);
  std::vector<unsigned char> sent(184);
  for (std::size_t i = 0; i < sent.size(); i++) sent[i] = static_cast<unsigned char>(i * 7);
  for (std::uint32_t lap = 0; lap < 3 * capacity; lap++) {
    REQUIRE(ring.producer.reserve(1) == 1);
    std::memcpy(ring.producer.message(0), sent.data(), sent.size());
    ring.producer.commit(1);
    REQUIRE(ring.consumer.peek(1) == 1);
    CHECK(std::memcmp(ring.consumer.message(0), sent.data(), sent.size()) == 0);
    ring.consumer.release(1);
  }
}

TEST_CASE("valid accepts only the geometries that a ring can have") {
  CHECK(Cells::valid(64, 1));
  CHECK(Cells::valid(256, 1024));
  CHECK_FALSE(Cells::valid(0, 8));
  CHECK_FALSE(Cells::valid(96, 8));
  CHECK_FALSE(Cells::valid(64, 0));
  CHECK_FALSE(Cells::valid(64, 12));
}

TEST_CASE("with two threads, a commit of several messages is seen as a whole or not at all") {
  constexpr std::uint64_t commits = 50'000;
  constexpr std::uint32_t most = 4;  // half a lap: never cut by the memory's end
  Ring ring(0);
  std::thread producer([&] {
    for (std::uint64_t i = 0; i < commits; i++) {
      while (ring.producer.reserve(most) != most) std::this_thread::yield();
      ring.producer.commit(most);
    }
  });
  std::uint64_t in_part = 0;
  for (std::uint64_t i = 0; i < commits; i++) {
    while (ring.consumer.peek(1) == 0) continue;
    if (ring.consumer.peek(most) != most) in_part++;
    while (ring.consumer.peek(most) != most) continue;
    ring.consumer.release(most);
  }
  producer.join();
  CHECK(in_part == 0);
}

TEST_CASE("with two threads, every message arrives whole, once and in order") {
  for (const std::uint64_t start : {std::uint64_t{0}, (std::uint64_t{1} << 32) - 1000, std::uint64_t{0} - 1000}) {
    Ring ring(start);
    constexpr std::uint64_t count = 200'000;
    std::thread sender([&] {
      for (std::uint64_t i = 0; i < count;) {
        const std::uint32_t room = ring.producer.reserve(5);
        for (std::uint32_t k = 0; k < room; k++) {
          const std::uint64_t words[7] = {i + k, ~(i + k), i + k, i + k, i + k, i + k, (i + k) * 3};
          std::memcpy(ring.producer.message(k), words, sizeof words);
        }
        ring.producer.commit(room);
        i += room;
        if (room == 0) std::this_thread::yield();
      }
    });
    // The sender may run over by the rest of its last batch.
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < count;) {
      const std::uint32_t got = ring.consumer.peek(3);
      for (std::uint32_t k = 0; k < got; k++) {
        std::uint64_t words[7];
        std::memcpy(words, ring.consumer.message(k), sizeof words);
        wrong += words[0] != i + k || words[1] != ~(i + k) || words[6] != (i + k) * 3;
      }
      ring.consumer.release(got);
      i += got;
      if (got == 0) std::this_thread::yield();
    }
    sender.join();
    CHECK(wrong == 0);
  }
}
