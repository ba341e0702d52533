// SPDX-License-Identifier: Apache-2.0
// A slot in this process's own memory, as a worker writes it and the trainer reads it.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tensors/slot.hpp"

namespace feedlane::test {

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
    for (const tensors::Fields::Field& f : fields.all())
      tensors.push_back(tensors::tensor_of(f, rows, slot.payload, slot.payload_offset));
    tensors::write_batch(slot, task, tensors, {});
  }
  Status read(std::int64_t rows, std::uint64_t id = task) {
    const Status s = tensors::read_batch(slot, id, fields, rows, max_rows, made, error);
    seen = made.tensors;
    records = made.records;
    return s;
  }
  // Of all three fields: so many rows, where they were declared.
  void check_declared(std::int64_t rows) const {
    REQUIRE(seen.size() == 3);
    for (std::size_t i = 0; i < 3; i++) {
      const feedlane_tensor expected = tensors::tensor_of(fields.all()[i], rows, slot.payload, slot.payload_offset);
      const feedlane_tensor& t = seen[i];
      CHECK(std::string(t.name) == fields.all()[i].name);
      CHECK(t.data == expected.data);
      CHECK(t.bytes == expected.bytes);
      CHECK(t.offset == expected.offset);
      CHECK(t.ndim == expected.ndim);
      CHECK(std::memcmp(t.shape, expected.shape, sizeof t.shape) == 0);
      CHECK(std::memcmp(t.strides, expected.strides, sizeof t.strides) == 0);
    }
  }

  tensors::Fields fields;
  alignas(8) shm::SlotHeader header;
  std::vector<std::byte> payload;
  tensors::Slot slot{};
  tensors::Made made;
  std::vector<feedlane_tensor> seen;
  std::vector<shm::SampleRecord> records;
  Error error;
};

constexpr std::uint32_t record_room = 4;

// The three declared tensors, the second of another shape, and a fourth; metadata, a state, two records: all of it sound.
struct Added : Memory {
  Added() {
    const std::uint64_t declared = fields.slot_bytes();
    bytes = declared + 4096;
    payload.assign(bytes + 1, std::byte{'p'});
    slot.payload = payload.data();
    slot.payload_bytes = bytes;
    slot.records = room;
    slot.record_room = record_room;
    slot.state_room = 64;
    write_added();
  }
  void write_added() {
    const std::uint64_t declared = fields.slot_bytes();
    std::vector<feedlane_tensor> tensors;
    for (const tensors::Fields::Field& f : fields.all())
      tensors.push_back(tensors::tensor_of(f, max_rows, slot.payload, slot.payload_offset));
    const std::int64_t shape[] = {2, 3, 4};
    tensors[1] = place(3, shape, declared);
    tensors[1].name = "label";
    tensors.push_back(place(3, shape, declared + 256));
    tensors::Extras extras;
    extras.shaped = 2 | 8;
    extras.metadata = {declared + 512, 100};
    extras.has_state = true;
    extras.state = {declared + 768, 64};
    extras.records = 2;
    room[0].position = 1;
    room[0].outcome = static_cast<std::int32_t>(shm::SampleOutcome::skipped);
    room[1].position = 5;
    room[1].outcome = static_cast<std::int32_t>(shm::SampleOutcome::retried);
    tensors::write_batch(slot, task, tensors, extras);
  }
  feedlane_tensor place(std::int32_t ndim, const std::int64_t* shape, std::uint64_t offset) const {
    feedlane_tensor t = tensors::row_major({0, 16, 1}, ndim, shape);
    t.name = "added";
    t.bytes = 48;
    t.offset = slot.payload_offset + offset;
    t.data = slot.payload + offset;
    return t;
  }
  // In bounds, whatever the worker said.
  void check_bounds() const {
    const auto inside = [&](const void* data, std::uint64_t count) {
      const auto* begin = static_cast<const std::byte*>(data);
      return begin >= payload.data() && count <= bytes && begin + count <= payload.data() + bytes;
    };
    for (const feedlane_tensor& t : made.tensors) {
      CHECK(inside(t.data, t.bytes));
      CHECK(t.ndim >= 0);
      CHECK(t.ndim <= FEEDLANE_MAX_NDIM);
      CHECK(std::strlen(t.name) < shm::name_bytes);
    }
    CHECK(inside(made.metadata.data(), made.metadata.size()));
    CHECK(inside(made.state.data(), made.state.size()));
    CHECK(made.state.size() <= slot.state_room);
    CHECK(made.records.size() <= record_room);
    for (const shm::SampleRecord& r : made.records) {
      CHECK(r.position < max_rows);
      CHECK(std::memchr(r.text, 0, sizeof r.text) != nullptr);
    }
  }
  std::uint64_t bytes = 0;
  shm::SampleRecord room[record_room] = {};
};

}  // namespace feedlane::test
