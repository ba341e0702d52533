// SPDX-License-Identifier: Apache-2.0
// What a worker writes into its slot when it has no batch, and how the trainer checks it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "unit/tensors/slot_memory.hpp"

using feedlane::Error;
using namespace feedlane::test;
namespace tensors = feedlane::tensors;
namespace shm = feedlane::shm;

TEST_CASE("a failure is read with its text, traceback, row and transient flag") {
  Memory m;
  for (const bool transient : {false, true}) {
    tensors::write_failure(m.slot, task, 3, transient, "no such file", "line 1\nline 2", 0);
    Error why;
    std::int64_t position = -7;
    REQUIRE(tensors::read_failure(m.slot, task, 5, position, why, m.records, m.error) == FEEDLANE_OK);
    CHECK(std::string(why.text) == "no such file");
    CHECK(why.detail == "line 1\nline 2");
    CHECK(why.transient == transient);
    CHECK(position == 3);
  }
}

TEST_CASE("a failure may have no row, no text and no traceback") {
  Memory m;
  tensors::write_failure(m.slot, task, -1, false, {}, {}, 0);
  Error why;
  std::int64_t position = 0;
  REQUIRE(tensors::read_failure(m.slot, task, 5, position, why, m.records, m.error) == FEEDLANE_OK);
  CHECK(std::string(why.text).empty());
  CHECK(why.detail.empty());
  CHECK(position == -1);
}

TEST_CASE("a long text is cut to 383 bytes, and a long traceback to the slot's size and to 64 KiB") {
  for (const std::size_t room : {std::size_t{0}, std::size_t{100000}}) {
    Memory m;
    if (room != 0) {
      m.payload.assign(room + 1, std::byte{'p'});
      m.slot.payload = m.payload.data();
      m.slot.payload_bytes = room;
    }
    const std::string text(1000, 't');
    const std::string detail(m.slot.payload_bytes + 1000, 'd');
    tensors::write_failure(m.slot, task, 0, false, text, detail, 0);
    Error why;
    std::int64_t position = 0;
    REQUIRE(tensors::read_failure(m.slot, task, 5, position, why, m.records, m.error) == FEEDLANE_OK);
    CHECK(std::string(why.text) == text.substr(0, shm::text_bytes - 1));
    CHECK(why.detail.size() == std::min<std::size_t>(m.slot.payload_bytes, shm::detail_bytes));
    CHECK(why.detail == detail.substr(0, why.detail.size()));
    CHECK(m.payload.back() == std::byte{'p'});
    CHECK_MESSAGE(m.header.text.text[shm::text_bytes - 1] == '\0', "terminated in the slot too");
  }
}

TEST_CASE("a traceback of more than 64 KiB is E_CORRUPT, even if the slot is larger") {
  Memory m;
  m.slot.payload_bytes = std::uint64_t{1} << 40;
  tensors::write_failure(m.slot, task, 0, false, "x", "", 0);
  m.header.head.detail_bytes = shm::detail_bytes + 1;
  Error why;
  std::int64_t position = 0;
  CHECK(tensors::read_failure(m.slot, task, 5, position, why, m.records, m.error) == FEEDLANE_E_CORRUPT);
  CHECK(m.error.needed == shm::detail_bytes);
}

TEST_CASE("an error text that a worker left unterminated is cut at the end of its buffer") {
  Memory m;
  tensors::write_failure(m.slot, task, 0, false, "x", "", 0);
  std::memset(m.header.text.text, 'y', sizeof m.header.text.text);
  std::memset(m.header.tensors, 'y', sizeof m.header.tensors);
  Error why;
  std::int64_t position = 0;
  REQUIRE(tensors::read_failure(m.slot, task, 5, position, why, m.records, m.error) == FEEDLANE_OK);
  CHECK(std::string(why.text) == std::string(shm::text_bytes - 1, 'y'));
}

TEST_CASE("a failure with an invalid length or row is E_CORRUPT, and the error has the number found and the limit") {
  struct Change {
    const char* argument;
    std::int64_t found, needed;
    void (*edit)(shm::SlotHead&);
  };
  const auto room = static_cast<std::int64_t>(Memory().slot.payload_bytes);
  for (const Change& c : {Change{"slot.detail_bytes", -1, room, [](auto& h) { h.detail_bytes = UINT64_MAX; }},
                          {"slot.detail_bytes", 1 << 30, room, [](auto& h) { h.detail_bytes = 1 << 30; }},
                          {"slot.failed_position", -2, 5, [](auto& h) { h.failed_position = -2; }},
                          {"slot.failed_position", 5, 5, [](auto& h) { h.failed_position = 5; }},
                          {"slot.failed_position", INT64_MIN, 5, [](auto& h) { h.failed_position = INT64_MIN; }}}) {
    Memory m;
    tensors::write_failure(m.slot, task, 4, false, "x", "detail", 0);
    c.edit(m.header.head);
    Error why;
    std::int64_t position = 77;
    CAPTURE(std::string(c.argument));
    CHECK(tensors::read_failure(m.slot, task, 5, position, why, m.records, m.error) == FEEDLANE_E_CORRUPT);
    CHECK(std::string(m.error.argument) == c.argument);
    CHECK(m.error.found == c.found);
    CHECK(m.error.needed == c.needed);
    CHECK(position == 77);
  }
}

TEST_CASE("the sample records of a failed task are checked like the records of a batch") {
  Added m;
  tensors::write_failure(m.slot, task, 5, false, "x", "", 2);
  Error why;
  std::int64_t position = 0;
  REQUIRE(tensors::read_failure(m.slot, task, max_rows, position, why, m.records, m.error) == FEEDLANE_OK);
  CHECK(m.records.size() == 2);
  m.room[1].position = 1;
  CHECK(tensors::read_failure(m.slot, task, max_rows, position, why, m.records, m.error) == FEEDLANE_E_CORRUPT);
  CHECK(std::string(m.error.argument) == "record.position");
  m.header.head.record_count = record_room + 1;
  CHECK(tensors::read_failure(m.slot, task, max_rows, position, why, m.records, m.error) == FEEDLANE_E_CORRUPT);
  CHECK(std::string(m.error.argument) == "slot.record_count");
}
