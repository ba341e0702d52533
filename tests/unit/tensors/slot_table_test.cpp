// SPDX-License-Identifier: Apache-2.0
// Tokens, references and uses of slots, from one thread and from several.
#include "tensors/slot_table.hpp"

#include <doctest/doctest.h>

#include <set>
#include <thread>
#include <vector>

#include "unit/shm/segments.hpp"

using feedlane::Status;
using feedlane::tensors::SlotTable;

namespace {

struct Counted {
  feedlane::shm::LoaderCounters counters{};
};

struct Table : Counted, SlotTable {
  explicit Table(std::uint32_t slots) { reset(slots, counters); }
  [[nodiscard]] std::uint64_t taken() const { return counters.slots_taken.load(std::memory_order_relaxed); }
  std::uint32_t must_take() {
    std::uint32_t slot = 0;
    REQUIRE(take(slot));
    return slot;
  }
  Status give_back(std::uint64_t token) {
    Left left;
    return release(token, left);
  }
  Status give_back(std::uint64_t token, bool& freed) {
    Left left;
    const Status s = release(token, left);
    freed = left.freed;
    return s;
  }
};

}  // namespace

TEST_CASE("every slot can be taken once, and then take() fails until a slot is put back") {
  for (const std::uint32_t slots : {1u, 2u, 63u, 64u, 65u, 200u}) {
    Table table(slots);
    CHECK(table.size() == slots);
    CHECK(table.free() == slots);
    std::set<std::uint32_t> taken;
    for (std::uint32_t i = 0; i < slots; i++) taken.insert(table.must_take());
    CHECK(taken.size() == slots);
    CHECK(*taken.rbegin() == slots - 1);
    CHECK(table.free() == 0);
    CHECK(table.taken() == slots);
    CHECK_FALSE(table.any_free());
    std::uint32_t slot = 99999;
    CHECK_FALSE(table.take(slot));
    table.put_back(slots - 1);
    CHECK(table.any_free());
    CHECK(table.free() == 1);
    CHECK(table.taken() == slots - 1);
    CHECK(table.must_take() == slots - 1);
  }
}

TEST_CASE("a token of a slot that does not exist is stale and not in use") {
  Table table(3);
  const std::uint64_t slots = std::uint64_t{1} << 24;  // a token has as many bits for the slot
  for (const std::uint64_t slot : {std::uint64_t{3}, slots / 2, slots - 1}) {
    const std::uint64_t token = slots | slot;
    std::uint32_t named = 0;
    CHECK_FALSE(table.is_in_use(token));
    CHECK_FALSE(table.is_held(token, named));
    CHECK(table.give_back(token) == FEEDLANE_E_STALE);
    CHECK(table.retain(token) == FEEDLANE_E_STALE);
  }
  std::uint32_t first = 0;
  REQUIRE(table.take(first));
  const std::uint64_t token = table.hand_out(first);
  REQUIRE(table.is_in_use(token));
  CHECK_FALSE_MESSAGE(table.is_in_use(token | 3), "of the same generation");
}

TEST_CASE("a slot that was put back shows no task to monitors") {
  feedlane::shm::Segments segments;
  feedlane::test::create(segments);
  Table table(4);
  table.reset(4, table.counters, &segments);
  const std::uint32_t slot = table.must_take();
  auto& task = segments.slot_record(slot)->task;
  task.store(9, std::memory_order_relaxed);
  table.put_back(slot);
  CHECK(task.load(std::memory_order_relaxed) == 0);
}

TEST_CASE("a taken slot becomes a batch with a token, and the last release frees the slot") {
  Table table(3);
  const std::uint32_t slot = table.must_take();
  CHECK(table.held() == 0);
  const std::uint64_t token = table.hand_out(slot);
  CHECK(token != 0);
  std::uint32_t named = 99;
  CHECK(table.slot_of(token, named));
  CHECK(named == slot);
  CHECK(table.held() == 1);
  CHECK(table.taken() == 0);
  CHECK(table.free() == 2);
  CHECK(table.retain(token) == FEEDLANE_OK);
  bool freed = true;
  CHECK(table.give_back(token, freed) == FEEDLANE_OK);
  CHECK_FALSE(freed);
  CHECK(table.held() == 1);
  CHECK(table.give_back(token, freed) == FEEDLANE_OK);
  CHECK(freed);
  CHECK(table.held() == 0);
  CHECK(table.free() == 3);
}

TEST_CASE("retain and release with a released token fail with E_STALE and free nothing") {
  Table table(2);
  const std::uint64_t token = table.hand_out(table.must_take());
  CHECK(table.give_back(token) == FEEDLANE_OK);
  bool freed = true;
  CHECK(table.give_back(token, freed) == FEEDLANE_E_STALE);
  CHECK_FALSE(freed);
  CHECK(table.retain(token) == FEEDLANE_E_STALE);
  CHECK(table.free() == 2);
  CHECK(table.held() == 0);
}

TEST_CASE("a token of an older generation can't affect the batch that has the slot now") {
  Table table(1);
  const std::uint64_t old = table.hand_out(table.must_take());
  CHECK(table.give_back(old) == FEEDLANE_OK);
  const std::uint64_t present = table.hand_out(table.must_take());
  CHECK(present != old);
  std::uint32_t a = 1, b = 2;
  CHECK(table.slot_of(old, a));
  CHECK(table.slot_of(present, b));
  CHECK(a == b);
  CHECK(table.give_back(old) == FEEDLANE_E_STALE);
  CHECK(table.retain(old) == FEEDLANE_E_STALE);
  CHECK(table.held() == 1);
  CHECK(table.give_back(present) == FEEDLANE_OK);
}

TEST_CASE("each batch has a new token") {
  Table table(2);
  std::set<std::uint64_t> tokens;
  for (int i = 0; i < 1000; i++) {
    const std::uint64_t token = table.hand_out(table.must_take());
    CHECK(tokens.insert(token).second);
    CHECK(table.give_back(token) == FEEDLANE_OK);
  }
}

TEST_CASE("a token that the table never issued is stale") {
  Table table(3);
  const std::uint64_t token = table.hand_out(table.must_take());
  for (const std::uint64_t other : {std::uint64_t{0}, std::uint64_t{1}, token + 1, token + 3,
                                    token ^ (std::uint64_t{1} << 63), token + (std::uint64_t{1} << 24), UINT64_MAX}) {
    CAPTURE(other);
    CHECK(table.retain(other) == FEEDLANE_E_STALE);
    CHECK(table.give_back(other) == FEEDLANE_E_STALE);
  }
  std::uint32_t slot = 0;
  CHECK_FALSE(table.slot_of(token | 3, slot));
  CHECK_FALSE(table.slot_of(UINT64_MAX, slot));
  CHECK(table.give_back(token) == FEEDLANE_OK);
}

TEST_CASE("an old token stays stale when its slot is taken again") {
  Table table(1);
  const std::uint64_t token = table.hand_out(table.must_take());
  CHECK(table.give_back(token) == FEEDLANE_OK);
  (void)table.must_take();
  CHECK(table.give_back(token) == FEEDLANE_E_STALE);
  CHECK(table.free() == 0);
}

TEST_CASE("a batch may have 65535 references, and one more fails with E_LIMIT without effect") {
  Table table(2);
  (void)table.must_take();
  const std::uint64_t token = table.hand_out(table.must_take());
  constexpr std::uint32_t most = (1u << 16) - 1;
  std::uint32_t retained = 1;
  while (retained < most && table.retain(token) == FEEDLANE_OK) retained++;
  CHECK(retained == most);
  CHECK(table.retain(token) == FEEDLANE_E_LIMIT);
  CHECK(table.retain(token) == FEEDLANE_E_LIMIT);
  bool freed = false;
  std::uint32_t released = 0;
  while (!freed && table.give_back(token, freed) == FEEDLANE_OK) released++;
  CHECK(released == most);
  CHECK(table.give_back(token) == FEEDLANE_E_STALE);
  CHECK(table.free() == 1);
}

TEST_CASE("after the last release a stream's use keeps the slot, but the token is stale") {
  Table table(1);
  const std::uint64_t token = table.hand_out(table.must_take());
  CHECK(table.begin_use(token) == FEEDLANE_OK);
  SlotTable::Left left;
  CHECK(table.release(token, left) == FEEDLANE_OK);
  CHECK(left.unreferenced);
  CHECK_FALSE(left.freed);
  std::uint32_t slot = 0;
  CHECK_FALSE(table.is_held(token, slot));
  CHECK(table.is_in_use(token));
  CHECK(table.retain(token) == FEEDLANE_E_STALE);
  CHECK(table.begin_use(token) == FEEDLANE_E_STALE);
  CHECK(table.release(token, left) == FEEDLANE_E_STALE);
  CHECK(table.free() == 0);
  CHECK(table.held() == 1);
  left = table.end_use(token);
  CHECK(left.freed);
  CHECK_FALSE(table.is_in_use(token));
  CHECK(table.free() == 1);
  CHECK(table.held() == 0);
}

TEST_CASE("the end of a use frees no slot before the last release, and a 256th begin_use fails with E_LIMIT") {
  Table table(1);
  const std::uint64_t token = table.hand_out(table.must_take());
  constexpr int most = 255;
  for (int i = 0; i < most; i++) REQUIRE(table.begin_use(token) == FEEDLANE_OK);
  CHECK(table.begin_use(token) == FEEDLANE_E_LIMIT);
  CHECK(table.retain(token) == FEEDLANE_OK);
  for (int i = 0; i < most; i++) {
    const SlotTable::Left left = table.end_use(token);
    CHECK_FALSE(left.unreferenced);
    CHECK_FALSE(left.freed);
  }
  SlotTable::Left left;
  CHECK(table.release(token, left) == FEEDLANE_OK);
  CHECK_FALSE(left.unreferenced);
  CHECK(table.release(token, left) == FEEDLANE_OK);
  CHECK(left.unreferenced);
  CHECK(left.freed);
}

TEST_CASE("if four threads retain and release a batch, the last release frees the slot exactly once") {
  Table table(1);
  for (int round = 0; round < 200; round++) {
    const std::uint64_t token = table.hand_out(table.must_take());
    constexpr int threads = 4, times = 500;
    std::atomic<int> freed{0}, failed{0};
    for (int t = 1; t < threads; t++) CHECK(table.retain(token) == FEEDLANE_OK);
    std::vector<std::thread> team;
    for (int t = 0; t < threads; t++)
      team.emplace_back([&] {
        bool last = false;
        for (int i = 0; i < times; i++) {
          if (table.retain(token) != FEEDLANE_OK) failed.fetch_add(1, std::memory_order_relaxed);
          if (table.give_back(token, last) != FEEDLANE_OK || last) failed.fetch_add(1, std::memory_order_relaxed);
        }
        if (table.give_back(token, last) != FEEDLANE_OK) failed.fetch_add(1, std::memory_order_relaxed);
        if (last) freed.fetch_add(1, std::memory_order_relaxed);
      });
    for (std::thread& t : team) t.join();
    CHECK(failed.load(std::memory_order_relaxed) == 0);
    CHECK(freed.load(std::memory_order_relaxed) == 1);
    CHECK(table.give_back(token) == FEEDLANE_E_STALE);
  }
  CHECK(table.free() == 1);
  CHECK(table.held() == 0);
}

TEST_CASE("the loader's thread takes slots that other threads released, and sees those threads' writes") {
  constexpr std::uint32_t slots = 4;
  Table table(slots);
  std::vector<std::uint64_t> memory(slots, 0);  // no atomics: the table orders the accesses
  std::atomic<std::uint64_t> handed[3] = {};
  std::atomic<int> wrong{0};
  constexpr int batches = 3000;
  std::vector<std::thread> team;
  for (auto& place : handed)
    team.emplace_back([&] {
      for (int i = 0; i < batches; i++) {
        std::uint64_t token = 0;
        while ((token = place.exchange(0, std::memory_order_acquire)) == 0) std::this_thread::yield();
        std::uint32_t slot = 0;
        (void)table.slot_of(token, slot);
        if (memory[slot] != token) wrong.fetch_add(1, std::memory_order_relaxed);
        memory[slot] = 0;
        if (table.give_back(token) != FEEDLANE_OK) wrong.fetch_add(1, std::memory_order_relaxed);
      }
    });
  for (int i = 0; i < batches * 3; i++) {
    std::uint32_t slot = 0;
    while (!table.take(slot)) std::this_thread::yield();
    if (memory[slot] != 0) wrong.fetch_add(1, std::memory_order_relaxed);
    const std::uint64_t token = table.hand_out(slot);
    memory[slot] = token;
    auto& place = handed[i % 3];
    std::uint64_t empty = 0;
    while (!place.compare_exchange_weak(empty, token, std::memory_order_release, std::memory_order_relaxed)) {
      empty = 0;
      std::this_thread::yield();
    }
  }
  for (std::thread& t : team) t.join();
  CHECK(wrong.load(std::memory_order_relaxed) == 0);
  CHECK(table.free() == slots);
  CHECK(table.held() == 0);
}
