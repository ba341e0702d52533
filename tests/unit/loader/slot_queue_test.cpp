// SPDX-License-Identifier: Apache-2.0
// The queue of slots in a circle.
#include "loader/slot_queue.hpp"

#include <doctest/doctest.h>

#include <vector>

using feedlane::loader::SlotQueue;

namespace {

using Slots = std::vector<std::uint32_t>;

Slots all(const SlotQueue& queue) {
  Slots slots;
  for (const std::uint32_t slot : queue) slots.push_back(slot);
  return slots;
}

// `slots`, the first of them at place `head` of a circle of 4.
SlotQueue make(std::size_t head, const Slots& slots) {
  SlotQueue queue;
  queue.reserve(4);
  for (std::size_t i = 0; i < head; i++) {
    queue.push(9);
    queue.pop();
  }
  for (const std::uint32_t slot : slots) queue.push(slot);
  return queue;
}

}  // namespace

TEST_CASE("slots leave the queue in the order in which they were added, wherever the circular buffer begins") {
  for (std::size_t head = 0; head < 4; head++) {
    SlotQueue queue = make(head, {3, 1, 0, 2});
    CHECK(queue.size() == 4);
    CHECK(queue.front() == 3);
    CHECK(all(queue) == Slots{3, 1, 0, 2});
    queue.pop();
    CHECK(all(queue) == Slots{1, 0, 2});
    queue.push(3);
    CHECK(all(queue) == Slots{1, 0, 2, 3});
  }
}

TEST_CASE("a slot can be removed from any place in the queue, and the other slots keep their order") {
  for (std::size_t head = 0; head < 4; head++)
    for (const std::uint32_t slot : {3u, 1u, 0u, 2u}) {
      CAPTURE(head);
      CAPTURE(slot);
      SlotQueue queue = make(head, {3, 1, 0, 2});
      queue.remove(slot);
      Slots others{3, 1, 0, 2};
      std::erase(others, slot);
      CHECK(all(queue) == others);
    }
}

TEST_CASE("removing a slot that is not in the queue changes nothing") {
  for (std::size_t head = 0; head < 4; head++)
    for (const Slots& slots : {Slots{}, Slots{3}, Slots{3, 1}, Slots{3, 1, 0}, Slots{3, 1, 0, 2}}) {
      SlotQueue queue = make(head, slots);
      queue.remove(7);
      CHECK(all(queue) == slots);
    }
}

TEST_CASE("replace() puts a slot in another slot's place, and changes nothing if the queue lacks that slot") {
  for (std::size_t head = 0; head < 4; head++) {
    SlotQueue queue = make(head, {3, 1, 0});
    queue.replace(1, 2);
    CHECK(all(queue) == Slots{3, 2, 0});
    queue.replace(7, 1);
    CHECK(all(queue) == Slots{3, 2, 0});
  }
}

TEST_CASE("a cleared queue is empty and takes as many slots as before") {
  SlotQueue queue = make(2, {3, 1, 0, 2});
  queue.clear();
  CHECK(queue.size() == 0);
  CHECK(all(queue).empty());
  for (const std::uint32_t slot : {0u, 1u, 2u, 3u}) queue.push(slot);
  CHECK(all(queue) == Slots{0, 1, 2, 3});
}
