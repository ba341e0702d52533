// SPDX-License-Identifier: Apache-2.0
#include "loader/ledger.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

using feedlane::loader::Ledger;
using feedlane::loader::Record;
using feedlane::shm::ResultMessage;
using State = Record::State;

namespace {

std::vector<std::uint32_t> in_order(Ledger& ledger) {
  std::vector<std::uint32_t> slots;
  ledger.for_each_in_order([&](std::uint32_t slot) { slots.push_back(slot); });
  return slots;
}

struct Sent {
  Sent() {
    ledger.reset(4, false);
    Record& record = ledger.add(2, 9, 90, 5);
    record.attempt = 1;
    result = {ledger.send(record, 3), 2, 1, FEEDLANE_OK, 5};
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
  for (const std::uint32_t slot : {3u, 0u, 4u}) (void)ledger.add(slot, slot * 10, slot * 100, slot + 1);
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

TEST_CASE("the order is a circle that may be full, and goes round and round") {
  constexpr std::uint32_t slots = 3;
  Ledger ledger;
  ledger.reset(slots, false);
  for (std::uint32_t i = 0; i < slots; i++) (void)ledger.add(i, i, 0, 1);
  for (std::uint32_t i = slots; i < 1000; i++) {
    CHECK(ledger.in_flight() == slots);
    const std::uint32_t oldest = ledger.front();
    CHECK(ledger.at(oldest).batch == i - slots);
    ledger.pop_front();
    (void)ledger.add(oldest, i, 0, 1);
    std::vector<std::int64_t> batches;
    for (const std::uint32_t slot : in_order(ledger)) batches.push_back(ledger.at(slot).batch);
    CHECK(batches == std::vector<std::int64_t>{i - 2, i - 1, i});
  }
  ledger.forget_order();
  CHECK(ledger.in_flight() == 0);
  CHECK(in_order(ledger).empty());
  (void)ledger.add(1, 7, 0, 1);
  CHECK(ledger.front() == 1);
}

TEST_CASE("an id is never used twice: batches, attempts, epochs") {
  Ledger ledger;
  ledger.reset(2, false);
  std::set<std::uint64_t> ids;
  for (int epoch = 0; epoch < 10; epoch++) {
    for (std::uint32_t slot = 0; slot < 2; slot++) {
      Record& record = ledger.add(slot, slot, 0, 1);
      for (int attempt = 0; attempt < 5; attempt++) {
        const std::uint64_t id = ledger.send(record, 0);
        CHECK(id == record.id);
        CHECK(id != 0);
        CHECK(ids.insert(id).second);
        CHECK(ledger.next_id() > *ids.rbegin());
      }
    }
    CHECK(ids.insert(ledger.take_id()).second);
    ledger.forget_order();
  }
  CHECK(ids.size() == 110);
}

TEST_CASE("sending makes a task of a batch: whose it is, and under which id") {
  Sent s;
  Record& record = s.ledger.at(2);
  CHECK(record.state == State::sent);
  CHECK(record.worker == 3);
  CHECK(record.batch == 9);
  CHECK(s.ledger.match(s.result, 3) == &record);
}

TEST_CASE("a result counts only if every word of it, and its lane, are the ledger's") {
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

TEST_CASE("a result counts only while its task is out") {
  Sent s;
  struct Case {
    State state;
    bool counts;
  };
  for (const Case& c : {Case{State::idle, false},
                        {State::pending, false},
                        {State::sent, true},
                        {State::abandoned, true},
                        {State::made, false},
                        {State::failed, false}}) {
    s.ledger.at(2).state = c.state;
    CAPTURE(static_cast<int>(c.state));
    CHECK((s.ledger.match(s.result, 3) != nullptr) == c.counts);
  }
}

TEST_CASE("a batch that went out again is no longer the first worker's") {
  Sent s;
  Record& record = s.ledger.at(2);
  record.state = State::pending;
  record.attempt++;
  const std::uint64_t id = s.ledger.send(record, 0);
  CHECK(s.ledger.match(s.result, 3) == nullptr);
  CHECK(s.ledger.match({id, 2, 2, FEEDLANE_OK, 5}, 0) == &record);
}

TEST_CASE("a slot's next batch begins without the last one's attempts and deaths") {
  Sent s;
  s.ledger.at(2).kills = 2;
  s.ledger.pop_front();
  const Record& record = s.ledger.add(2, 10, 95, 5);
  CHECK(record.attempt == 0);
  CHECK(record.kills == 0);
  CHECK(record.state == State::pending);
}

// ---- out of order ----

TEST_CASE("out of order: batches are yielded as they were finished; the others keep their order") {
  Ledger ledger;
  ledger.reset(5, true);
  for (const std::uint32_t slot : {3u, 0u, 4u, 1u}) (void)ledger.add(slot, slot, 0, 1);
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

TEST_CASE("in order a finished batch waits for those before it") {
  Ledger ledger;
  ledger.reset(5, false);
  for (const std::uint32_t slot : {3u, 0u}) (void)ledger.add(slot, slot, 0, 1);
  ledger.finish(0, State::made);
  CHECK_FALSE(ledger.any_done());
  ledger.finish(3, State::made);
  REQUIRE(ledger.any_done());
  CHECK(ledger.front() == 3);
}

TEST_CASE("out of order: round and round, whichever is finished first") {
  constexpr std::uint32_t slots = 4;
  Ledger ledger;
  ledger.reset(slots, true);
  for (std::uint32_t i = 0; i < slots; i++) (void)ledger.add(i, i, 0, 1);
  std::vector<std::int64_t> expected{0, 1, 2, 3};
  for (std::uint32_t i = slots; i < 1000; i++) {
    const std::size_t place = i * 7 % slots;  // in the order of adding
    const std::uint32_t slot = in_order(ledger)[place];
    ledger.finish(slot, State::made);
    CHECK(ledger.front() == slot);
    CHECK(ledger.at(slot).batch == expected[place]);
    ledger.pop_front();
    expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(place));
    (void)ledger.add(slot, i, 0, 1);
    expected.push_back(i);
    std::vector<std::int64_t> batches;
    for (const std::uint32_t s : in_order(ledger)) batches.push_back(ledger.at(s).batch);
    CHECK(batches == expected);
    CHECK(ledger.in_flight() == slots);
  }
}

TEST_CASE("out of order: what was finished in an epoch that was given up isn't yielded in the next") {
  Ledger ledger;
  ledger.reset(3, true);
  (void)ledger.add(0, 0, 0, 1);
  (void)ledger.add(1, 1, 0, 1);
  ledger.finish(1, State::made);
  ledger.forget_order();
  CHECK_FALSE(ledger.any_done());
  CHECK(ledger.in_flight() == 0);
  (void)ledger.add(2, 0, 0, 1);
  CHECK_FALSE(ledger.any_done());
}

TEST_CASE("a slot's next batch is anyone's, and has taken nothing from a shard") {
  Ledger ledger;
  ledger.reset(2, false);
  Record& first = ledger.add(1, 0, 0, 1);
  first.home = 7;
  first.taken = 9;
  ledger.pop_front();
  const Record& second = ledger.add(1, 1, 1, 1);
  CHECK(second.home == Record::anyone);
  CHECK(second.taken == 0);
}
