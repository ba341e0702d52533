// SPDX-License-Identifier: Apache-2.0
// The ledger: every transition of an entry, the order of batches, and the counts.
#include "loader/ledger.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

using feedlane::loader::Entry;
using feedlane::loader::Ledger;
using feedlane::shm::ResultMessage;
using State = Entry::State;

namespace {

Ledger::Batch batch(std::int64_t number, std::int64_t first_position, std::uint32_t rows,
                    std::uint32_t home = Entry::anyone, bool is_bound = false) {
  return {number, first_position, rows, home, is_bound, nullptr};
}

std::vector<std::uint32_t> in_order(const Ledger& ledger) {
  std::vector<std::uint32_t> slots;
  ledger.for_each_in_order([&](const Entry& entry) { slots.push_back(entry.slot); });
  return slots;
}

struct Sent {
  Sent() {
    ledger.reset(4, false);
    (void)ledger.add(2, batch(9, 90, 5));
    (void)ledger.send(2, 0);
    ledger.retry(2);
    result = {ledger.send(2, 3), 2, 1, FEEDLANE_OK, 5, 0, 0};
  }
  Ledger ledger;
  ResultMessage result{};
};

}  // namespace

TEST_CASE("batches are yielded in the order in which they were added, whatever their slots") {
  Ledger ledger;
  ledger.reset(5, false);
  CHECK(ledger.slots() == 5);
  CHECK(ledger.in_flight() == 0);
  for (const std::uint32_t slot : {3u, 0u, 4u}) (void)ledger.add(slot, batch(slot * 10, slot * 100, slot + 1));
  CHECK(ledger.in_flight() == 3);
  CHECK(in_order(ledger) == std::vector<std::uint32_t>{3, 0, 4});
  CHECK(ledger.at(4).batch == 40);
  CHECK(ledger.at(4).first_position == 400);
  CHECK(ledger.at(4).rows == 5);
  CHECK(ledger.at(4).state == State::pending);
  CHECK(ledger.front() == 3);
  ledger.pop_front();
  CHECK(ledger.front() == 0);
  CHECK(in_order(ledger) == std::vector<std::uint32_t>{0, 4});
}

TEST_CASE("batches keep their order when the circular buffer is full and wraps") {
  constexpr std::uint32_t slots = 3;
  Ledger ledger;
  ledger.reset(slots, false);
  for (std::uint32_t i = 0; i < slots; i++) (void)ledger.add(i, batch(i, 0, 1));
  for (std::uint32_t i = slots; i < 1000; i++) {
    CHECK(ledger.in_flight() == slots);
    const std::uint32_t oldest = ledger.front();
    CHECK(ledger.at(oldest).batch == i - slots);
    ledger.pop_front();
    (void)ledger.add(oldest, batch(i, 0, 1));
    std::vector<std::int64_t> batches;
    for (const std::uint32_t slot : in_order(ledger)) batches.push_back(ledger.at(slot).batch);
    CHECK(batches == std::vector<std::int64_t>{i - 2, i - 1, i});
  }
  ledger.abandon_all(false, [](std::uint32_t) {});
  CHECK(ledger.in_flight() == 0);
  CHECK(in_order(ledger).empty());
  (void)ledger.add(1, batch(7, 0, 1));
  CHECK(ledger.front() == 1);
}

TEST_CASE("a task id is never used twice, across batches, attempts and epochs") {
  Ledger ledger;
  ledger.reset(2, false);
  std::set<std::uint64_t> ids;
  for (int epoch = 0; epoch < 10; epoch++) {
    for (std::uint32_t slot = 0; slot < 2; slot++) {
      (void)ledger.add(slot, batch(slot, 0, 1));
      for (int attempt = 0; attempt < 5; attempt++) {
        if (attempt != 0) ledger.retry(slot);
        const std::uint64_t id = ledger.send(slot, 0);
        CHECK(id == ledger.at(slot).id);
        CHECK(id != 0);
        CHECK(ids.insert(id).second);
        CHECK(ledger.next_id() > *ids.rbegin());
      }
    }
    ledger.abandon_all(false, [](std::uint32_t) {});
  }
  CHECK(ids.size() == 100);
}

TEST_CASE("send() gives a batch a worker and a task id") {
  Sent s;
  const Entry& entry = s.ledger.at(2);
  CHECK(entry.state == State::sent);
  CHECK(entry.worker == 3);
  CHECK(entry.batch == 9);
  CHECK(entry.slot == 2);
  CHECK(s.ledger.match(s.result, 3) == &entry);
  CHECK(s.ledger.find(s.result.id, 3) == &entry);
  CHECK(s.ledger.oldest_of(3) == s.result.id);
  CHECK(s.ledger.oldest_of(0) == UINT64_MAX);
}

TEST_CASE("find() finds a task however many were sent since, and none that is answered or another worker's") {
  Ledger ledger;
  ledger.reset(3, true);
  (void)ledger.add(0, batch(0, 0, 1));
  const std::uint64_t old = ledger.send(0, 7);
  std::uint64_t last = 0;
  for (int i = 1; i < 50; i++) {
    (void)ledger.add(1, batch(i, i, 1));
    const std::uint64_t id = ledger.send(1, 4);
    CHECK(ledger.find(old, 7) == &ledger.at(0));
    CHECK(ledger.find(id, 4) == &ledger.at(1));
    CHECK(ledger.find(id, 7) == nullptr);
    CHECK(ledger.find(last, 4) == nullptr);
    CHECK(ledger.find(id + 1, 4) == nullptr);
    ledger.finish(1, State::made);
    ledger.pop_front();
    ledger.retire(1);
    last = id;
  }
}

TEST_CASE("the oldest task of a worker is its first unanswered task, even if its epoch was abandoned") {
  Ledger ledger;
  ledger.reset(4, false);
  std::vector<std::uint64_t> ids;
  for (std::uint32_t slot = 0; slot < 4; slot++) {
    (void)ledger.add(slot, batch(slot, slot, 1));
    if (slot != 3) ids.push_back(ledger.send(slot, slot == 0 ? 1 : 0));
  }
  std::vector<std::uint64_t> oldest(3);
  ledger.find_oldest(oldest);
  CHECK(oldest == std::vector<std::uint64_t>{ids[1], ids[0], UINT64_MAX});
  ledger.finish(1, State::made);
  ledger.abandon_all(true, [](std::uint32_t) {});
  ledger.find_oldest(oldest);
  CHECK(oldest == std::vector<std::uint64_t>{ids[2], ids[0], UINT64_MAX});
  for (const std::uint32_t worker : {0u, 1u, 2u}) CHECK(ledger.oldest_of(worker) == oldest[worker]);
}

// promise: fault-garbage
TEST_CASE("a result is accepted only if its id, slot, attempt and lane match the ledger") {
  struct Change {
    const char* what;
    void (*edit)(ResultMessage&);
  };
  Sent s;
  for (const Change& c : {Change{"id before", [](auto& r) { r.id--; }},
                          {"id after", [](auto& r) { r.id++; }},
                          {"id 0", [](auto& r) { r.id = 0; }},
                          {"another slot", [](auto& r) { r.slot = 1; }},
                          {"no slot", [](auto& r) { r.slot = 4; }},
                          {"no slot at all", [](auto& r) { r.slot = UINT32_MAX; }},
                          {"earlier attempt", [](auto& r) { r.attempt = 0; }},
                          {"later attempt", [](auto& r) { r.attempt = 2; }}}) {
    ResultMessage result = s.result;
    c.edit(result);
    CAPTURE(std::string(c.what));
    CHECK(s.ledger.match(result, 3) == nullptr);
  }
  for (const std::uint32_t lane : {0u, 2u, 4u, UINT32_MAX}) CHECK(s.ledger.match(s.result, lane) == nullptr);
  CHECK(s.ledger.match(s.result, 3) != nullptr);
}

TEST_CASE("a result is accepted only while its task is sent or abandoned") {
  struct Case {
    const char* what;
    void (*change)(Ledger&);
    bool counts;
  };
  for (const Case& c : {Case{"sent", [](Ledger&) {}, true},
                        {"abandoned", [](Ledger& l) { l.abandon_all(true, [](std::uint32_t) {}); }, true},
                        {"taken back", [](Ledger& l) { l.requeue(2, 3); }, false},
                        {"made", [](Ledger& l) { l.finish(2, State::made); }, false},
                        {"failed", [](Ledger& l) { l.fail(2); }, false},
                        {"retired", [](Ledger& l) { l.retire(2); }, false}}) {
    Sent s;
    c.change(s.ledger);
    CAPTURE(std::string(c.what));
    CHECK((s.ledger.match(s.result, 3) != nullptr) == c.counts);
  }
}

TEST_CASE("the counts of pending and abandoned entries are correct after every transition") {
  Ledger ledger;
  ledger.reset(6, false);
  const auto counts = [&] { return std::pair(ledger.pending(), ledger.abandoned()); };
  using Counts = std::pair<std::uint32_t, std::uint32_t>;
  for (std::uint32_t slot = 0; slot < 5; slot++) (void)ledger.add(slot, batch(slot, slot, 1));
  CHECK(counts() == Counts{5, 0});
  for (std::uint32_t slot = 0; slot < 4; slot++) (void)ledger.send(slot, 0);
  CHECK(counts() == Counts{1, 0});
  ledger.requeue(3);
  ledger.requeue(2, 0);
  CHECK(counts() == Counts{3, 0});
  CHECK(ledger.at(2).avoid == 0);
  ledger.finish(4, State::ended);  // one that needed no worker
  CHECK(counts() == Counts{2, 0});
  ledger.move(0, 5);
  CHECK(counts() == Counts{3, 1});
  CHECK(in_order(ledger) == std::vector<std::uint32_t>{5, 1, 2, 3, 4});
  ledger.retire(0);
  CHECK(counts() == Counts{3, 0});
  std::vector<std::uint32_t> dropped;
  ledger.abandon_all(true, [&](std::uint32_t slot) { dropped.push_back(slot); });
  CHECK(dropped == std::vector<std::uint32_t>{5, 2, 3, 4});
  CHECK(counts() == Counts{0, 1});
  CHECK(ledger.at(1).state == State::abandoned);
}

TEST_CASE("a batch moved to another slot keeps its kills, and keeps its worker only if bound to that worker") {
  for (const bool is_bound : {false, true}) {
    Ledger ledger;
    ledger.reset(2, false);
    (void)ledger.add(0, batch(7, 70, 3, 1, is_bound));
    (void)ledger.send(0, 1);
    ledger.count_kill(0, 17, "exited with status 3");
    ledger.move(0, 1);
    const Entry& moved = ledger.at(1);
    CHECK(moved.batch == 7);
    CHECK(moved.first_position == 70);
    CHECK(moved.rows == 3);
    CHECK(moved.kills == 1);
    CHECK(std::string(moved.contents.error.text) == "process 17 exited with status 3");
    CHECK(moved.attempt == 1);
    CHECK(moved.avoid == 1);
    CHECK(moved.home == (is_bound ? 1 : Entry::anyone));
    CHECK(moved.is_bound == is_bound);
  }
}

TEST_CASE("a batch that was sent again accepts no result of its first worker") {
  Sent s;
  s.ledger.retry(2);
  const std::uint64_t id = s.ledger.send(2, 0);
  CHECK(s.ledger.match(s.result, 3) == nullptr);
  CHECK(s.ledger.match({id, 2, 2, FEEDLANE_OK, 5, 0, 0}, 0) == &s.ledger.at(2));
}

TEST_CASE("the next batch of a slot begins with 0 attempts and 0 kills") {
  Sent s;
  s.ledger.count_kill(2, 17, "exited with status 3");
  s.ledger.finish(2, State::made);
  s.ledger.pop_front();
  s.ledger.retire(2);
  const Entry& entry = s.ledger.add(2, batch(10, 95, 5));
  CHECK(entry.attempt == 0);
  CHECK(entry.kills == 0);
  CHECK(entry.state == State::pending);
}

// ---- out of order ----

TEST_CASE("out of order, batches are yielded as they finish, and the other batches keep their order") {
  Ledger ledger;
  ledger.reset(5, true);
  for (const std::uint32_t slot : {3u, 0u, 4u, 1u}) (void)ledger.add(slot, batch(slot, 0, 1));
  CHECK_FALSE(ledger.any_done());
  ledger.finish(4, State::made);
  ledger.finish(3, State::failed);
  REQUIRE(ledger.any_done());
  CHECK(ledger.front() == 4);
  ledger.pop_front();
  CHECK(in_order(ledger) == std::vector<std::uint32_t>{3, 0, 1});
  CHECK(ledger.front() == 3);
  ledger.pop_front();
  CHECK_FALSE(ledger.any_done());
  CHECK(ledger.in_flight() == 2);
  CHECK(in_order(ledger) == std::vector<std::uint32_t>{0, 1});
  ledger.finish(1, State::ended);
  CHECK(ledger.front() == 1);
}

TEST_CASE("in order, a finished batch waits for the batches before it") {
  Ledger ledger;
  ledger.reset(5, false);
  for (const std::uint32_t slot : {3u, 0u}) (void)ledger.add(slot, batch(slot, 0, 1));
  ledger.finish(0, State::made);
  CHECK_FALSE(ledger.any_done());
  ledger.finish(3, State::made);
  REQUIRE(ledger.any_done());
  CHECK(ledger.front() == 3);
}

TEST_CASE("out of order, batches keep their order when the buffer wraps, whichever batch finishes first") {
  constexpr std::uint32_t slots = 4;
  Ledger ledger;
  ledger.reset(slots, true);
  for (std::uint32_t i = 0; i < slots; i++) (void)ledger.add(i, batch(i, 0, 1));
  std::vector<std::int64_t> expected{0, 1, 2, 3};
  for (std::uint32_t i = slots; i < 1000; i++) {
    const std::size_t place = i * 7 % slots;  // in the order of adding
    const std::uint32_t slot = in_order(ledger)[place];
    ledger.finish(slot, State::made);
    CHECK(ledger.front() == slot);
    CHECK(ledger.at(slot).batch == expected[place]);
    ledger.pop_front();
    expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(place));
    (void)ledger.add(slot, batch(i, 0, 1));
    expected.push_back(i);
    std::vector<std::int64_t> batches;
    for (const std::uint32_t s : in_order(ledger)) batches.push_back(ledger.at(s).batch);
    CHECK(batches == expected);
    CHECK(ledger.in_flight() == slots);
  }
}

TEST_CASE("out of order, a batch that finished in an abandoned epoch isn't yielded in the next epoch") {
  Ledger ledger;
  ledger.reset(3, true);
  (void)ledger.add(0, batch(0, 0, 1));
  (void)ledger.add(1, batch(1, 0, 1));
  ledger.finish(1, State::made);
  ledger.abandon_all(false, [](std::uint32_t) {});
  CHECK_FALSE(ledger.any_done());
  CHECK(ledger.in_flight() == 0);
  (void)ledger.add(2, batch(0, 0, 1));
  CHECK_FALSE(ledger.any_done());
}

TEST_CASE("the next batch of a slot is bound to no worker, and has taken no samples from a shard") {
  Ledger ledger;
  ledger.reset(2, false);
  (void)ledger.add(1, batch(0, 0, 1, 7, true));
  ledger.contents(1).taken = 9;
  ledger.pop_front();
  const Entry& second = ledger.add(1, batch(1, 1, 1));
  CHECK(second.home == Entry::anyone);
  CHECK_FALSE(second.is_bound);
  CHECK(second.contents.taken == 0);
}
