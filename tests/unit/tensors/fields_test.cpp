// SPDX-License-Identifier: Apache-2.0
// Declared fields: their layout in a slot, and what is refused.
#include "tensors/fields.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "shm/plan.hpp"

using feedlane::Error;
using feedlane::Status;
using feedlane::tensors::Fields;
namespace shm = feedlane::shm;

namespace {

constexpr feedlane_dtype f32{2, 32, 1};

feedlane_field field(const char* name, std::initializer_list<std::int64_t> shape, feedlane_dtype dtype = f32) {
  feedlane_field f{};
  f.size = sizeof f;
  f.name = name;
  f.dtype = dtype;
  f.ndim = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), f.shape);
  return f;
}

Fields declared(const std::vector<feedlane_field>& fields, std::int64_t max_rows) {
  Fields result;
  Error error;
  const Status s = result.declare(fields.data(), fields.size(), max_rows, error);
  REQUIRE_MESSAGE(s == FEEDLANE_OK, error.text);
  return result;
}

// What an element of a later header's array might look like.
struct Later {
  feedlane_field field;
  std::int64_t unknown;
};

}  // namespace

TEST_CASE("each field begins at a multiple of 256 bytes after the field before, and has room for all rows") {
  const Fields fields =
      declared({field("image", {3, 5, 7}), field("label", {}, {0, 64, 1}), field("pair", {2}, {1, 8, 4})}, 10);
  REQUIRE(fields.all().size() == 3);
  CHECK(fields.all()[0].row_bytes == 3 * 5 * 7 * 4);
  CHECK(fields.all()[0].offset == 0);
  CHECK(fields.all()[1].row_bytes == 8);
  CHECK(fields.all()[1].offset == 4352);  // 4200 rounded up
  CHECK(fields.all()[2].row_bytes == 2 * 4);
  CHECK(fields.all()[2].offset == 4352 + 256);
  CHECK(fields.slot_bytes() == 4352 + 256 + 256);
}

TEST_CASE("a field of 0 bytes takes no room, but a slot has at least 256 bytes") {
  const Fields fields = declared({field("none", {0, 4}), field("also", {5, 0})}, 3);
  CHECK(fields.all()[0].row_bytes == 0);
  CHECK(fields.all()[1].offset == 0);
  CHECK(fields.slot_bytes() == shm::tensor_alignment);
}

TEST_CASE("a field may fill the largest slot, and a larger field is refused") {
  const auto most = static_cast<std::int64_t>(shm::max_slot_bytes);
  const Fields fields = declared({field("x", {most / 8, 2})}, 1);
  CHECK(fields.slot_bytes() == shm::max_slot_bytes);
  feedlane_field beyond[2] = {field("x", {most / 8, 2}), field("y", {1})};
  Fields refused;
  Error error;
  CHECK(refused.declare(beyond, 2, 1, error) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(error.argument) == "config.fields[1].shape");
  beyond[0].shape[0]++;
  Fields too_large;
  CHECK(too_large.declare(beyond, 1, 1, error) == FEEDLANE_E_ARGUMENT);
}

TEST_CASE("a field whose other dimensions exceed the largest slot is refused even if one dimension is 0") {
  for (std::size_t empty = 0; empty < 3; empty++) {
    feedlane_field f = field("x", {std::int64_t{1} << 40, std::int64_t{1} << 40, std::int64_t{1} << 40});
    f.shape[empty] = 0;
    Fields fields;
    Error error;
    CHECK(fields.declare(&f, 1, 4, error) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(error.argument) == "config.fields[0].shape");
  }
}

TEST_CASE("a dtype's lanes of 0 count as 1, and every DLPack type of whole bytes is accepted") {
  for (const int code : {0, 1, 2, 4, 5, 6}) {
    const Fields fields = declared({field("x", {2}, {static_cast<std::uint8_t>(code), 128, 0})}, 1);
    CHECK(fields.all()[0].dtype.lanes == 1);
    CHECK(fields.all()[0].row_bytes == 32);
  }
}

TEST_CASE("each invalid field declaration is refused with the argument's name and both numbers") {
  struct Refusal {
    const char* argument;
    std::int64_t found, needed;
    feedlane_field bad;
  };
  const std::string long_name(32, 'n');
  constexpr auto most = static_cast<std::int64_t>(shm::max_slot_bytes);
  for (const Refusal& r : {
           Refusal{"name", 0, 31, field("", {1})},
           {"name", 32, 31, field(long_name.c_str(), {1})},
           {"name", 0, 1, field(nullptr, {1})},
           {"name", 1, -1, field("first", {1})},  // taken
           {"dtype.code", 3, 6, field("x", {1}, {3, 32, 1})},
           {"dtype.code", 7, 6, field("x", {1}, {7, 32, 1})},
           {"dtype.code", 255, 6, field("x", {1}, {255, 32, 1})},
           {"dtype.bits", 0, 8, field("x", {1}, {2, 0, 1})},
           {"dtype.bits", 12, 8, field("x", {1}, {2, 12, 1})},
           {"ndim", 8, 7, field("x", {1, 1, 1, 1, 1, 1, 1, 1})},
           {"shape", -1, 0, field("x", {4, -1})},
           {"shape", INT64_MIN, 0, field("x", {INT64_MIN})},
           {"shape", INT64_MAX, most, field("x", {INT64_MAX})},
           {"shape", 1 << 20, most, field("x", {1 << 20, 1 << 20})},
           {"shape", std::int64_t{1} << 32, most, field("x", {std::int64_t{1} << 32, std::int64_t{1} << 32})},
           // 4 bytes, 2^36 of them, fit; 5 rows of them don't
           {"shape", std::int64_t{1} << 38, most, field("x", {std::int64_t{1} << 36})},
       }) {
    Fields fields;
    Error error;
    const feedlane_field both[2] = {field("first", {1}), r.bad};
    CAPTURE(std::string(r.argument));
    CAPTURE(r.found);
    CHECK(fields.declare(both, 2, 5, error) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(error.argument) == std::string("config.fields[1].") + r.argument);
    CHECK(error.found == r.found);
    CHECK(error.needed == r.needed);
  }
  feedlane_field negative = field("x", {1});
  negative.ndim = -1;
  Fields fields;
  Error error;
  CHECK(fields.declare(&negative, 1, 1, error) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(error.argument) == "config.fields[0].ndim");
}

TEST_CASE("names of 31 bytes, and names with a common prefix, are accepted") {
  const std::string longest(31, 'n');
  const Fields fields = declared({field(longest.c_str(), {1}), field("a", {1}), field("ab", {1})}, 1);
  CHECK(fields.all()[0].name == longest);
}

TEST_CASE("all fields together may fill the largest slot, and one more byte is refused") {
  const std::int64_t half = std::int64_t{1} << 39;
  constexpr feedlane_dtype u8{1, 8, 1};
  const Fields fields = declared({field("a", {half}, u8), field("b", {half - 256}, u8), field("c", {256}, u8)}, 1);
  CHECK(fields.slot_bytes() == shm::max_slot_bytes);
  const feedlane_field more[] = {field("a", {half}, u8), field("b", {half}, u8), field("c", {1}, u8)};
  Fields beyond;
  Error error;
  CHECK(beyond.declare(more, 3, 1, error) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(error.argument) == "config.fields[2].shape");
}

TEST_CASE("a sample has 1 to 64 fields") {
  Fields fields;
  Error error;
  std::vector<feedlane_field> many;
  std::vector<std::string> names;
  for (int i = 0; i < 65; i++) names.push_back("f" + std::to_string(i));
  for (const std::string& name : names) many.push_back(field(name.c_str(), {1}));
  struct Count {
    const feedlane_field* fields;
    std::uint64_t count;
    std::int64_t found, needed;
  };
  for (const Count& c : {Count{nullptr, 3, 0, 1}, {many.data(), 0, 0, 1}, {many.data(), 65, 65, 64}}) {
    CHECK(fields.declare(c.fields, c.count, 1, error) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(error.argument) == "config.fields");
    CHECK(error.found == c.found);
    CHECK(error.needed == c.needed);
  }
  CHECK(fields.declare(many.data(), 64, 1, error) == FEEDLANE_OK);
}

TEST_CASE("field structs of a later header are accepted if their unknown members are zero") {
  Later later[2] = {{field("a", {1}), 0}, {field("b", {2}), 0}};
  for (Later& l : later) l.field.size = sizeof(Later);
  Error error;
  Fields fields;
  CHECK(fields.declare(&later[0].field, 2, 1, error) == FEEDLANE_OK);
  REQUIRE(fields.all().size() == 2);
  CHECK(fields.all()[1].name == "b");
  CHECK(fields.all()[1].shape[0] == 2);
  later[1].unknown = 1;
  Fields refused;
  CHECK(refused.declare(&later[0].field, 2, 1, error) == FEEDLANE_E_ABI);
  CHECK(std::string(error.argument) == "config.fields[1].size");
  CHECK(error.found == sizeof(Later));
  CHECK(error.needed == sizeof(feedlane_field));
}

TEST_CASE("shorter field structs of an earlier header are accepted, and their missing members are zero") {
  constexpr std::size_t size = offsetof(feedlane_field, shape) + 2 * sizeof(std::int64_t);
  std::byte memory[2 * size + sizeof(feedlane_field)];
  std::memset(memory, 0x55, sizeof memory);  // behind the last: must not be read
  feedlane_field a = field("a", {4, 5}), b = field("b", {2, 3, 7});
  a.size = b.size = size;
  std::memcpy(memory, &a, size);
  std::memcpy(memory + size, &b, size);
  Error error;
  Fields fields;
  REQUIRE_MESSAGE(fields.declare(reinterpret_cast<feedlane_field*>(memory), 2, 1, error) == FEEDLANE_OK, error.text);
  REQUIRE(fields.all().size() == 2);
  CHECK(fields.all()[0].name == "a");
  CHECK(fields.all()[0].shape[1] == 5);
  CHECK(fields.all()[1].name == "b");
  CHECK(fields.all()[1].shape[1] == 3);
  CHECK(fields.all()[1].shape[2] == 0);
  CHECK(fields.as_declared()[1].size == sizeof(feedlane_field));

  feedlane_field named = field("n", {});
  named.size = offsetof(feedlane_field, dtype);
  Fields refused;
  CHECK_MESSAGE(refused.declare(&named, 1, 1, error) == FEEDLANE_E_ARGUMENT, "a type has no default");
  CHECK(std::string(error.argument) == "config.fields[0].dtype.bits");
}

TEST_CASE("a field struct may have up to 1 MiB, and a larger one is refused") {
  constexpr std::size_t most = std::size_t{1} << 20;
  for (const std::size_t size : {most, most + 8}) {
    std::vector<std::uint64_t> memory(size / 8);
    feedlane_field f = field("x", {4});
    f.size = size;
    std::memcpy(memory.data(), &f, sizeof f);
    Fields fields;
    Error error;
    CHECK(fields.declare(reinterpret_cast<const feedlane_field*>(memory.data()), 1, 1, error) ==
          (size == most ? FEEDLANE_OK : FEEDLANE_E_ABI));
  }
}

TEST_CASE("field structs that are too small for a name, of odd size or of mixed sizes are refused") {
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{8}, sizeof(feedlane_field) - 4, sizeof(feedlane_field) + 1}) {
    feedlane_field two[3] = {field("a", {1}), field("b", {1}), field("c", {1})};
    two[0].size = size;
    Fields fields;
    Error error;
    CAPTURE(size);
    CHECK(fields.declare(two, 2, 1, error) == FEEDLANE_E_ABI);
    CHECK(std::string(error.argument) == "config.fields[0].size");
    CHECK(error.found == static_cast<std::int64_t>(size));
    CHECK(error.needed == (size <= 8 ? 16 : sizeof(feedlane_field)));
    two[0].size = sizeof(feedlane_field);
    two[1].size = size;
    Fields mixed;
    CHECK(mixed.declare(two, 2, 1, error) == FEEDLANE_E_ABI);
    CHECK(std::string(error.argument) == "config.fields[1].size");
  }
}

TEST_CASE("a worker reads the layout that the trainer declared from the control segment") {
  const Fields trainer =
      declared({field("image", {3, 5}), field("label", {}, {0, 64, 1}), field("v", {2}, {5, 128, 2})}, 9);
  shm::FieldRecord records[3] = {};
  trainer.write(records);
  Fields worker;
  Error error;
  REQUIRE(worker.read(records, 3, 9, error) == FEEDLANE_OK);
  CHECK(worker.slot_bytes() == trainer.slot_bytes());
  for (std::size_t i = 0; i < 3; i++) {
    const Fields::Field &a = trainer.all()[i], &b = worker.all()[i];
    CHECK(a.name == b.name);
    CHECK(std::memcmp(&a.dtype, &b.dtype, sizeof a.dtype) == 0);
    CHECK(a.ndim == b.ndim);
    CHECK(std::memcmp(a.shape, b.shape, sizeof a.shape) == 0);
    CHECK(a.offset == b.offset);
    CHECK(a.row_bytes == b.row_bytes);
  }
  const auto form = worker.as_declared();
  REQUIRE(form.size() == 3);
  CHECK(form[0].size == sizeof(feedlane_field));
  CHECK(std::string(form[2].name) == "v");
  CHECK(form[2].dtype.lanes == 2);
  CHECK(form[0].ndim == 2);
  CHECK(form[0].shape[1] == 5);
}

TEST_CASE("if all fields are empty, a worker's slot has the same size as the trainer's") {
  const Fields trainer = declared({field("none", {0, 4})}, 9);
  shm::FieldRecord record{};
  trainer.write(&record);
  Fields worker;
  Error error;
  REQUIRE(worker.read(&record, 1, 9, error) == FEEDLANE_OK);
  CHECK(worker.slot_bytes() == trainer.slot_bytes());
}

TEST_CASE("without declared fields a worker's layout needs 0 bytes of a slot") {
  Error error;
  Fields worker;
  REQUIRE(worker.read(nullptr, 0, 9, error) == FEEDLANE_OK);
  CHECK(worker.slot_bytes() == 0);
}

TEST_CASE("a worker refuses invalid field records in the control segment with E_CORRUPT") {
  const Fields trainer = declared({field("a", {3}), field("b", {3})}, 2);
  struct Change {
    const char* name;
    void (*edit)(shm::FieldRecord&);
  };
  for (const Change& c : {Change{"empty name", [](auto& r) { r.name[0] = '\0'; }},
                          {"name without an end", [](auto& r) { std::memset(r.name, 'x', sizeof r.name); }},
                          {"a name twice", [](auto& r) { r.name[0] = 'a'; }},
                          {"code", [](auto& r) { r.code = 3; }},
                          {"bits", [](auto& r) { r.bits = 1; }},
                          {"ndim", [](auto& r) { r.ndim = 8; }},
                          {"negative ndim", [](auto& r) { r.ndim = INT32_MIN; }},
                          {"negative shape", [](auto& r) { r.shape[0] = -1; }},
                          {"huge shape", [](auto& r) { r.shape[0] = INT64_MAX; }}}) {
    shm::FieldRecord records[2] = {};
    trainer.write(records);
    c.edit(records[1]);
    Fields worker;
    Error error;
    CAPTURE(std::string(c.name));
    CHECK(worker.read(records, 2, 2, error) == FEEDLANE_E_CORRUPT);
    CHECK(std::string(error.argument).rfind("config.fields[1].", 0) == 0);
  }
}
