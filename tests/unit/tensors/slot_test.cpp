// SPDX-License-Identifier: Apache-2.0
// What a worker writes into its slot, and how the trainer checks it.
#include "tensors/slot.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "unit/tensors/slot_memory.hpp"

using feedlane::Error;
using feedlane::Status;
using feedlane::tensors::Fields;
using feedlane::tensors::Slot;
using namespace feedlane::test;
namespace tensors = feedlane::tensors;
namespace shm = feedlane::shm;

TEST_CASE("the trainer reads a batch as the worker described it, with all rows or fewer") {
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5}, max_rows}) {
    Memory m;
    m.write(rows);
    REQUIRE(m.read(rows) == FEEDLANE_OK);
    m.check_declared(rows);
  }
}

TEST_CASE("a slot header of another task is E_CORRUPT, and the error has both task ids") {
  Memory m;
  m.write(5);
  CHECK(m.read(5, task + 1) == FEEDLANE_E_CORRUPT);
  CHECK(std::string(m.error.argument) == "slot.task_id");
  CHECK(m.error.found == task);
  CHECK(m.error.needed == task + 1);
  std::int64_t position = 0;
  Error why;
  tensors::write_failure(m.slot, task, 0, false, "x", "", 0);
  CHECK(tensors::read_failure(m.slot, task + 1, 5, position, why, m.records, m.error) == FEEDLANE_E_CORRUPT);
  CHECK(std::string(m.error.argument) == "slot.task_id");
}

TEST_CASE("a slot header with a wrong number of tensors is E_CORRUPT") {
  for (const std::uint32_t count : {0u, 2u, 65u, UINT32_MAX}) {
    Memory m;
    m.write(5);
    m.header.head.tensor_count = count;
    CHECK(m.read(5) == FEEDLANE_E_CORRUPT);
    CHECK(std::string(m.error.argument) == "slot.tensor_count");
    CHECK(m.error.found == count);
    CHECK(m.error.needed == (count < 3 ? 3 : FEEDLANE_MAX_TENSORS));
  }
}

TEST_CASE("the record of a tensor with its declared shape is neither written nor read") {
  Memory m;
  m.write(5);
  for (std::size_t i = 0; i < sizeof m.header.tensors; i++)
    REQUIRE(reinterpret_cast<const unsigned char*>(m.header.tensors)[i] == 0xaa);  // as it was before
  for (const int junk : {0, 0xff}) {
    std::memset(static_cast<void*>(m.header.tensors), junk, sizeof m.header.tensors);
    REQUIRE(m.read(5) == FEEDLANE_OK);
    m.check_declared(5);
  }
}

TEST_CASE("an earlier read of a slot doesn't affect the next one") {
  Added added;
  Memory& m = added;
  for (int lap = 0; lap < 2; lap++) {
    for (const std::int64_t rows : {std::int64_t{5}, std::int64_t{5}, std::int64_t{2}, max_rows}) {
      m.write(rows);
      REQUIRE(m.read(rows) == FEEDLANE_OK);
      m.check_declared(rows);
    }
    added.write_added();
    REQUIRE(m.read(max_rows) == FEEDLANE_OK);
    CHECK(m.seen.size() == 4);
    CHECK(m.seen[1].bytes == 48);
    m.write(max_rows);
    REQUIRE(m.read(max_rows) == FEEDLANE_OK);
    m.check_declared(max_rows);
    added.write_added();
    m.header.tensors[3].bytes++;
    CHECK(m.read(max_rows) == FEEDLANE_E_CORRUPT);  // half-way
    m.write(max_rows);
    REQUIRE(m.read(max_rows) == FEEDLANE_OK);
    m.check_declared(max_rows);
  }
}

// ---- what a data set adds ----

TEST_CASE("reshaped and added tensors, metadata, a state and records are read as they were written") {
  Added m;
  REQUIRE(m.read(max_rows) == FEEDLANE_OK);
  REQUIRE(m.seen.size() == 4);
  for (const std::size_t i : {std::size_t{1}, std::size_t{3}}) {
    CHECK(m.seen[i].ndim == 3);
    CHECK(m.seen[i].shape[2] == 4);
    CHECK(m.seen[i].strides[0] == 12);
    CHECK(m.seen[i].bytes == 48);
    CHECK(m.seen[i].dtype.bits == 16);
    CHECK(std::string(m.seen[i].name) == (i == 1 ? "label" : "added"));
  }
  CHECK(m.made.metadata.size() == 100);
  CHECK(m.made.metadata.data() == m.slot.payload + m.fields.slot_bytes() + 512);
  CHECK(m.made.has_state);
  CHECK(m.made.state.size() == 64);
  REQUIRE(m.records.size() == 2);
  CHECK(m.records[0].position == 1);
  CHECK(m.made.skipped() == 1);
  m.check_bounds();
}

TEST_CASE("each invalid number in a tensor's record, metadata, state or sample record is E_CORRUPT and named") {
  struct Change {
    const char* argument;
    void (*edit)(Added&);
  };
  using R = shm::SampleOutcome;
  for (const Change& c : {
           Change{"slot.tensor_count", [](auto& m) { m.header.head.tensor_count = 2; }},
           {"slot.tensor_count", [](auto& m) { m.header.head.tensor_count = 65; }},
           {"slot.tensor_count", [](auto& m) { m.header.head.tensor_count = UINT32_MAX; }},
           {"slot.shaped", [](auto& m) { m.header.head.shaped |= std::uint64_t{1} << 4; }},
           {"slot.shaped", [](auto& m) { m.header.head.shaped |= std::uint64_t{1} << 63; }},
           {"slot.shaped", [](auto& m) { m.header.head.shaped &= ~(std::uint64_t{1} << 3); }},
           {"slot.shaped", [](auto& m) { m.header.head.tensor_count = 3; }},
           {"dtype.code", [](auto& m) { m.header.tensors[3].code = 3; }},
           {"dtype.code", [](auto& m) { m.header.tensors[1].code = 255; }},
           {"dtype.bits", [](auto& m) { m.header.tensors[3].bits = 0; }},
           {"dtype.bits", [](auto& m) { m.header.tensors[3].bits = 12; }},
           {"ndim", [](auto& m) { m.header.tensors[3].ndim = -1; }},
           {"ndim", [](auto& m) { m.header.tensors[1].ndim = 9; }},
           {"ndim", [](auto& m) { m.header.tensors[1].ndim = INT32_MAX; }},
           {"shape", [](auto& m) { m.header.tensors[3].shape[1] = -3; }},
           {"shape", [](auto& m) { m.header.tensors[3].shape[0] = INT64_MAX; }},
           {"shape", [](auto& m) { m.header.tensors[3].shape[0] = m.header.tensors[3].shape[1] = INT64_C(1) << 32; }},
           {"tensor.bytes", [](auto& m) { m.header.tensors[3].shape[2] = 5; }},
           {"tensor.bytes", [](auto& m) { m.header.tensors[3].bytes = 49; }},
           {"tensor.bytes", [](auto& m) { m.header.tensors[1].bytes = 0; }},
           {"tensor.bytes", [](auto& m) { m.header.tensors[1].bytes = UINT64_MAX; }},
           {"tensor.offset", [](auto& m) { m.header.tensors[3].offset = m.bytes; }},
           {"tensor.offset", [](auto& m) { m.header.tensors[3].offset = m.bytes - 47; }},
           {"tensor.offset", [](auto& m) { m.header.tensors[1].offset = UINT64_MAX; }},
           {"tensor.offset", [](auto& m) { m.header.tensors[1].offset = UINT64_MAX - 47; }},
           {"tensor.offset", [](auto& m) { m.header.tensors[1].offset++; }},
           {"slot.metadata_offset", [](auto& m) { m.header.head.metadata_offset = m.bytes - 99; }},
           {"slot.metadata_offset", [](auto& m) { m.header.head.metadata_offset = UINT64_MAX; }},
           {"slot.metadata_offset", [](auto& m) { m.header.head.metadata_bytes = m.bytes + 1; }},
           {"slot.metadata_offset", [](auto& m) { m.header.head.metadata_bytes = UINT64_MAX; }},
           {"slot.state_offset", [](auto& m) { m.header.head.state_offset = m.bytes - 63; }},
           {"slot.state_offset", [](auto& m) { m.header.head.state_bytes = UINT64_MAX; }},
           {"slot.state_bytes", [](auto& m) { m.header.head.state_bytes = 65; }},
           {"slot.record_count", [](auto& m) { m.header.head.record_count = record_room + 1; }},
           {"slot.record_count", [](auto& m) { m.header.head.record_count = UINT32_MAX; }},
           {"record.position", [](auto& m) { m.room[1].position = 1; }},
           {"record.position", [](auto& m) { m.room[1].position = 0; }},
           {"record.position", [](auto& m) { m.room[1].position = max_rows; }},
           {"record.position", [](auto& m) { m.room[0].position = UINT32_MAX; }},
           {"record.outcome", [](auto& m) { m.room[0].outcome = 0; }},
           {"record.outcome", [](auto& m) { m.room[0].outcome = 4; }},
           {"record.outcome", [](auto& m) { m.room[1].outcome = INT32_MIN; }},
           {"record.whole", [](auto& m) { m.room[0].whole = 1; }},
           {"record.whole", [](auto& m) { m.room[1].whole = 2; }},
           {"record.whole",
            [](auto& m) {
              m.room[1].whole = 1;
              m.room[1].outcome = static_cast<std::int32_t>(R::skipped);
            }},
       }) {
    Added m;
    c.edit(m);
    CAPTURE(std::string(c.argument));
    CAPTURE(std::string(m.error.text));
    CHECK(m.read(max_rows) == FEEDLANE_E_CORRUPT);
    CHECK(std::string(m.error.argument) == c.argument);
  }
}

TEST_CASE("an E_CORRUPT error of a slot has a text with the numbers and the violated rule") {
  struct Change {
    const char* text;
    void (*edit)(Added&);
  };
  for (const Change& c : {
           Change{"slot.record_count is 9 in the slot, must be at most 4",
                  [](auto& m) { m.header.head.record_count = 9; }},
           {"slot.state_bytes is 65 in the slot, must be at most 64", [](auto& m) { m.header.head.state_bytes = 65; }},
           {"tensor.offset is 257 in the slot, must be a multiple of 256",
            [](auto& m) { m.header.tensors[1].offset = 257; }},
       }) {
    Added m;
    m.slot.record_room = 4;
    c.edit(m);
    CHECK(m.read(max_rows) == FEEDLANE_E_CORRUPT);
    CHECK(std::string(m.error.text) == c.text);
  }
  Added m;
  m.header.head.metadata_offset = m.slot.payload_bytes;
  CHECK(m.read(max_rows) == FEEDLANE_E_CORRUPT);
  const std::string end = std::to_string(m.slot.payload_bytes);
  CHECK(std::string(m.error.text) == "slot.metadata_offset is " + end +
                                         " in the slot, and the 100 bytes from there extend past the slot's end at " +
                                         end);
}

TEST_CASE("the last record may be for the whole batch, and its position is then not checked") {
  Added m;
  m.room[1].whole = 1;
  m.room[1].position = 0;
  CHECK(m.read(max_rows) == FEEDLANE_OK);
}

TEST_CASE("a batch may have as many tensors as a slot can describe, and one more is E_CORRUPT") {
  Added m;
  std::vector<feedlane_tensor> tensors;
  for (const Fields::Field& f : m.fields.all())
    tensors.push_back(tensors::tensor_of(f, max_rows, m.slot.payload, m.slot.payload_offset));
  const std::int64_t shape[] = {2, 3, 4};
  while (tensors.size() < FEEDLANE_MAX_TENSORS) tensors.push_back(m.place(3, shape, m.fields.slot_bytes()));
  tensors::Extras extras;
  extras.shaped = ~std::uint64_t{7};
  tensors::write_batch(m.slot, task, tensors, extras);
  REQUIRE(m.read(max_rows) == FEEDLANE_OK);
  CHECK(m.seen.size() == FEEDLANE_MAX_TENSORS);
  CHECK(std::string(m.seen.back().name) == "added");
  m.header.head.tensor_count++;
  CHECK(m.read(max_rows) == FEEDLANE_E_CORRUPT);
  CHECK(m.error.needed == FEEDLANE_MAX_TENSORS);
}

TEST_CASE("a record's text that a worker left unterminated is cut at the end of its buffer") {
  Added m;
  std::memset(m.room[0].text, 'y', sizeof m.room[0].text);
  REQUIRE(m.read(max_rows) == FEEDLANE_OK);
  CHECK(m.records[0].text[sizeof m.room[0].text - 1] == '\0');
  CHECK(m.records[0].text[sizeof m.room[0].text - 2] == 'y');
}

TEST_CASE("metadata may fill a slot, and one more byte is E_CORRUPT") {
  Added m;
  m.header.head.metadata_offset = 0;
  m.header.head.metadata_bytes = m.bytes;
  REQUIRE(m.read(max_rows) == FEEDLANE_OK);
  CHECK(m.made.metadata.size() == m.bytes);
  m.header.head.metadata_bytes++;
  CHECK(m.read(max_rows) == FEEDLANE_E_CORRUPT);
  CHECK(std::string(m.error.argument) == "slot.metadata_offset");
  m.header.head.metadata_offset = 1;
  m.header.head.metadata_bytes = m.bytes - 1;
  CHECK(m.read(max_rows) == FEEDLANE_OK);
}

// promise: fault-garbage
TEST_CASE("a slot with any byte changed gives E_CORRUPT or a batch within the slot's bounds") {
  const auto flip = [](Added& m, void* memory, std::size_t byte, std::byte bit) {
    static_cast<std::byte*>(memory)[byte] ^= bit;
    if (m.read(max_rows) == FEEDLANE_OK) m.check_bounds();
    else CHECK(m.error.code == FEEDLANE_E_CORRUPT);
  };
  for (const std::byte bit : {std::byte{1}, std::byte{16}, std::byte{128}, std::byte{255}}) {
    for (std::size_t byte = 0; byte < sizeof(shm::SlotHead); byte++) {
      Added m;
      flip(m, &m.header.head, byte, bit);
    }
    for (const std::size_t tensor : {std::size_t{0}, std::size_t{1}, std::size_t{3}})
      for (std::size_t byte = 0; byte < sizeof(shm::TensorRecord); byte++) {
        Added m;
        flip(m, &m.header.tensors[tensor], byte, bit);
      }
    for (std::size_t byte = 0; byte < 2 * sizeof(shm::SampleRecord); byte++) {
      Added m;
      flip(m, m.room, byte, bit);
    }
  }
}
