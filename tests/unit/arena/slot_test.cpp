// SPDX-License-Identifier: Apache-2.0
#include "arena/slot.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>

using feedlane::Error;
using feedlane::Status;
using feedlane::arena::Fields;
using feedlane::arena::Slot;
namespace arena = feedlane::arena;
namespace shm = feedlane::shm;

namespace {

constexpr std::uint64_t task = 42;
constexpr std::int64_t max_rows = 6;

// A slot in this process's own memory, with a sample of three fields.
struct Memory {
  Memory() {
    feedlane_field declared[3] = {};
    const char* names[3] = {"image", "label", "empty"};
    for (std::size_t i = 0; i < 3; i++) {
      declared[i].size = sizeof declared[i];
      declared[i].name = names[i];
      declared[i].dtype = {2, 32, 1};
    }
    declared[0].ndim = 2;
    declared[0].shape[0] = 3;
    declared[0].shape[1] = 5;
    declared[2].ndim = 1;
    REQUIRE(fields.declare(declared, 3, max_rows, error) == FEEDLANE_OK);
    payload.assign(fields.slot_bytes() + 1, std::byte{'p'});        // the last byte is another slot's
    std::memset(static_cast<void*>(&header), 0xaa, sizeof header);  // what a task before left
    slot = {&header, payload.data(), 8192, fields.slot_bytes()};
  }
  void write(std::int64_t rows) {
    std::vector<feedlane_tensor> tensors;
    for (const Fields::Field& f : fields.all())
      tensors.push_back(arena::tensor_of(f, rows, slot.payload, slot.payload_offset));
    arena::write_batch(slot, task, tensors);
  }
  Status read(std::int64_t rows, std::uint64_t id = task) {
    return arena::read_batch(slot, id, fields, rows, seen, error);
  }

  Fields fields;
  alignas(8) shm::SlotHeader header;
  std::vector<std::byte> payload;
  Slot slot{};
  std::vector<feedlane_tensor> seen;
  Error error;
};

}  // namespace

TEST_CASE("what a worker describes is what the trainer reads, all rows or fewer") {
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5}, max_rows}) {
    Memory m;
    m.write(rows);
    REQUIRE(m.read(rows) == FEEDLANE_OK);
    REQUIRE(m.seen.size() == 3);
    for (std::size_t i = 0; i < 3; i++) {
      const feedlane_tensor expected = arena::tensor_of(m.fields.all()[i], rows, m.slot.payload, 8192);
      const feedlane_tensor& t = m.seen[i];
      CHECK(std::string(t.name) == m.fields.all()[i].name);
      CHECK(t.data == expected.data);
      CHECK(t.bytes == expected.bytes);
      CHECK(t.offset == expected.offset);
      CHECK(t.ndim == expected.ndim);
      CHECK(std::memcmp(t.shape, expected.shape, sizeof t.shape) == 0);
      CHECK(std::memcmp(t.strides, expected.strides, sizeof t.strides) == 0);
    }
  }
}

TEST_CASE("rows other than the result's are E_CORRUPT") {
  Memory m;
  m.write(5);
  CHECK(m.read(4) == FEEDLANE_E_CORRUPT);
  CHECK(std::string(m.error.argument) == "tensor.shape");
  CHECK(m.error.found == 5);
  CHECK(m.error.needed == 4);
}

TEST_CASE("a header that speaks of another task is E_CORRUPT, with both ids") {
  Memory m;
  m.write(5);
  CHECK(m.read(5, task + 1) == FEEDLANE_E_CORRUPT);
  CHECK(std::string(m.error.argument) == "slot.task_id");
  CHECK(m.error.found == task);
  CHECK(m.error.needed == task + 1);
  std::int64_t position = 0;
  Error why;
  arena::write_failure(m.slot, task, 0, false, "x", "");
  CHECK(arena::read_failure(m.slot, task + 1, 5, position, why, m.error) == FEEDLANE_E_CORRUPT);
  CHECK(std::string(m.error.argument) == "slot.task_id");
}

TEST_CASE("another number of tensors is E_CORRUPT") {
  for (const std::uint32_t count : {0u, 2u, 4u, UINT32_MAX}) {
    Memory m;
    m.write(5);
    m.header.head.tensor_count = count;
    CHECK(m.read(5) == FEEDLANE_E_CORRUPT);
    CHECK(std::string(m.error.argument) == "slot.tensor_count");
    CHECK(m.error.found == count);
    CHECK(m.error.needed == 3);
  }
}

TEST_CASE("a single wrong byte in any number of any tensor's record is E_CORRUPT and named") {
  struct Part {
    std::size_t offset, bytes;
    const char* argument;
  };
  using R = shm::TensorRecord;
  for (const Part& part : {Part{offsetof(R, code), 4, "tensor.dtype"},
                           {offsetof(R, ndim), 4, "tensor.ndim"},
                           {offsetof(R, shape), sizeof R::shape, "tensor.shape"},
                           {offsetof(R, strides), sizeof R::strides, "tensor.strides"},
                           {offsetof(R, offset), 8, "tensor.offset"},
                           {offsetof(R, bytes), 8, "tensor.bytes"}})
    for (std::size_t tensor = 0; tensor < 3; tensor++)
      for (std::size_t byte = part.offset; byte < part.offset + part.bytes; byte++)
        for (const std::byte bit : {std::byte{1}, std::byte{128}}) {
          Memory m;
          m.write(5);
          reinterpret_cast<std::byte*>(&m.header.tensors[tensor])[byte] ^= bit;
          CAPTURE(tensor);
          CAPTURE(byte);
          CHECK(m.read(5) == FEEDLANE_E_CORRUPT);
          CHECK(std::string(m.error.argument) == part.argument);
        }
}

TEST_CASE("a record's name is not believed: the trainer has its own") {
  Memory m;
  m.write(5);
  std::memset(m.header.tensors[1].name, 'z', sizeof m.header.tensors[1].name);
  REQUIRE(m.read(5) == FEEDLANE_OK);
  CHECK(std::string(m.seen[1].name) == "label");
}

TEST_CASE("a failure travels with its text, its traceback, its row and whether a retry is worth it") {
  Memory m;
  for (const bool transient : {false, true}) {
    arena::write_failure(m.slot, task, 3, transient, "no such file", "line 1\nline 2");
    Error why;
    std::int64_t position = -7;
    REQUIRE(arena::read_failure(m.slot, task, 5, position, why, m.error) == FEEDLANE_OK);
    CHECK(std::string(why.text) == "no such file");
    CHECK(why.detail == "line 1\nline 2");
    CHECK(why.transient == transient);
    CHECK(position == 3);
  }
}

TEST_CASE("a failure without a row, a text or a traceback") {
  Memory m;
  arena::write_failure(m.slot, task, -1, false, {}, {});
  Error why;
  std::int64_t position = 0;
  REQUIRE(arena::read_failure(m.slot, task, 5, position, why, m.error) == FEEDLANE_OK);
  CHECK(std::string(why.text).empty());
  CHECK(why.detail.empty());
  CHECK(position == -1);
}

TEST_CASE("too long a text or traceback is cut: to a line, to the slot, to 64 KiB") {
  for (const std::size_t room : {std::size_t{0}, std::size_t{100000}}) {
    Memory m;
    if (room != 0) {
      m.payload.assign(room + 1, std::byte{'p'});
      m.slot.payload = m.payload.data();
      m.slot.payload_bytes = room;
    }
    const std::string text(1000, 't');
    const std::string detail(m.slot.payload_bytes + 1000, 'd');
    arena::write_failure(m.slot, task, 0, false, text, detail);
    Error why;
    std::int64_t position = 0;
    REQUIRE(arena::read_failure(m.slot, task, 5, position, why, m.error) == FEEDLANE_OK);
    CHECK(std::string(why.text) == text.substr(0, shm::text_bytes - 1));
    CHECK(why.detail.size() == std::min<std::size_t>(m.slot.payload_bytes, shm::detail_bytes));
    CHECK(why.detail == detail.substr(0, why.detail.size()));
    CHECK(m.payload.back() == std::byte{'p'});
  }
}

TEST_CASE(
    "a traceback longer than any is E_CORRUPT, however large the slot: nobody copies gigabytes on a worker's word") {
  Memory m;
  m.slot.payload_bytes = std::uint64_t{1} << 40;
  arena::write_failure(m.slot, task, 0, false, "x", "");
  m.header.head.detail_bytes = shm::detail_bytes + 1;
  Error why;
  std::int64_t position = 0;
  CHECK(arena::read_failure(m.slot, task, 5, position, why, m.error) == FEEDLANE_E_CORRUPT);
  CHECK(m.error.needed == shm::detail_bytes);
}

TEST_CASE("a text that a broken worker left without an end is cut, never read beyond") {
  Memory m;
  arena::write_failure(m.slot, task, 0, false, "x", "");
  std::memset(m.header.text.text, 'y', sizeof m.header.text.text);
  std::memset(m.header.reserved, 'y', sizeof m.header.reserved);
  Error why;
  std::int64_t position = 0;
  REQUIRE(arena::read_failure(m.slot, task, 5, position, why, m.error) == FEEDLANE_OK);
  CHECK(std::string(why.text) == std::string(shm::text_bytes - 1, 'y'));
}

TEST_CASE("a failure whose numbers can't be is E_CORRUPT, with what was found and what can be") {
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
    arena::write_failure(m.slot, task, 4, false, "x", "detail");
    c.edit(m.header.head);
    Error why;
    std::int64_t position = 77;
    CAPTURE(std::string(c.argument));
    CHECK(arena::read_failure(m.slot, task, 5, position, why, m.error) == FEEDLANE_E_CORRUPT);
    CHECK(std::string(m.error.argument) == c.argument);
    CHECK(m.error.found == c.found);
    CHECK(m.error.needed == c.needed);
    CHECK(position == 77);
  }
}
