// SPDX-License-Identifier: Apache-2.0
// The catalogue: what the feeder writes of a batch is what a consumer reads, and what leads out of data is refused.
#include "sharing/catalogue.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "unit/shm/segments.hpp"

using feedlane::Error;
using feedlane::Status;
using feedlane::shm::CatalogueEntry;
using feedlane::shm::Segments;

namespace {

constexpr std::uint32_t slot = 2;

// A loader's segments, and a batch of two tensors and metadata in one of their slots.
struct Fixture {
  Fixture() {
    feedlane::test::create(segments);
    start = segments.plan().payload_of(slot);
    tensors[0] = tensor("image", {2, 8, 1}, {3, 7}, 0, 21);
    tensors[1] = tensor("extra", {0, 64, 1}, {2}, 256, 16);
    std::memcpy(segments.payload(slot) + 512, "label", 5);
    std::int64_t* const indices = segments.index_list(slot);
    for (int i = 0; i < 3; i++) indices[i] = 40 + i;
    batch.size = sizeof batch;
    batch.epoch = 3;
    batch.batch = 17;
    batch.worker = 1;
    batch.attempt = 2;
    batch.tensors = tensors;
    batch.tensor_count = 2;
    batch.count = 2;
    batch.indices = indices;
    batch.skipped_count = 1;
    batch.skipped = indices + 2;
    batch.metadata = segments.payload(slot) + 512;
    batch.metadata_bytes = 5;
    batch.dispatched_ns = 11;
    batch.begun_ns = 12;
    batch.committed_ns = 13;
    batch.swept_ns = 14;
    write();
  }

  [[nodiscard]] feedlane_tensor tensor(const char* name, feedlane_dtype dtype, std::vector<std::int64_t> shape,
                                       std::uint64_t offset, std::uint64_t bytes) const {
    feedlane_tensor t{};
    t.name = name;
    t.dtype = dtype;
    t.ndim = static_cast<std::int32_t>(shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = shape.size(); i-- != 0; stride *= shape[i]) {
      t.shape[i] = shape[i];
      t.strides[i] = stride;
    }
    t.offset = start + offset;
    t.data = segments.payload(slot) + offset;
    t.bytes = bytes;
    return t;
  }
  void write() { feedlane::sharing::write_entry(batch, segments, *entry); }
  Status read() { return feedlane::sharing::read_entry(*entry, slot, segments, described, out, error); }
  // Reads a changed entry.
  Status read_with(const std::function<void(CatalogueEntry&)>& change) {
    write();
    change(*entry);
    error = {};
    return read();
  }

  Segments segments;
  std::uint64_t start = 0;
  feedlane_tensor tensors[2]{};
  feedlane_batch batch{};
  std::unique_ptr<CatalogueEntry> entry = std::make_unique<CatalogueEntry>();
  feedlane::sharing::Described described;
  feedlane_batch out{};
  Error error;
};

}  // namespace

TEST_CASE("a consumer reads exactly the batch that the feeder wrote") {
  Fixture f;
  REQUIRE_MESSAGE(f.read() == FEEDLANE_OK, f.error.text);
  CHECK(f.out.size == sizeof f.out);
  CHECK(f.out.epoch == 3);
  CHECK(f.out.batch == 17);
  CHECK(f.out.worker == 1);
  CHECK(f.out.attempt == 2);
  CHECK(f.out.count == 2);
  CHECK(f.out.indices == f.batch.indices);
  CHECK(f.out.skipped_count == 1);
  CHECK(f.out.skipped[0] == 42);
  CHECK(std::string(static_cast<const char*>(f.out.metadata), f.out.metadata_bytes) == "label");
  CHECK(f.out.dispatched_ns == 11);
  CHECK(f.out.begun_ns == 12);
  CHECK(f.out.committed_ns == 13);
  CHECK(f.out.swept_ns == 14);
  REQUIRE(f.out.tensor_count == 2);
  for (int i = 0; i < 2; i++) {
    const feedlane_tensor &was = f.tensors[i], &is = f.out.tensors[i];
    CHECK(std::string(is.name) == was.name);
    CHECK(is.data == was.data);
    CHECK(is.bytes == was.bytes);
    CHECK(is.offset == was.offset);
    CHECK(is.dtype.code == was.dtype.code);
    CHECK(is.dtype.bits == was.dtype.bits);
    CHECK(is.dtype.lanes == was.dtype.lanes);
    CHECK(is.ndim == was.ndim);
    CHECK(std::memcmp(is.shape, was.shape, sizeof was.shape) == 0);
    CHECK(std::memcmp(is.strides, was.strides, sizeof was.strides) == 0);
  }
}

TEST_CASE("a slot's new batch keeps no indices, metadata or tensors of the former batch") {
  Fixture f;
  f.batch.indices = f.batch.skipped = nullptr;
  f.batch.skipped_count = 0;
  f.batch.metadata = nullptr;
  f.batch.metadata_bytes = 0;
  f.batch.tensor_count = 1;
  f.write();
  REQUIRE_MESSAGE(f.read() == FEEDLANE_OK, f.error.text);
  CHECK(f.out.indices == nullptr);
  CHECK(f.out.skipped == nullptr);
  CHECK(f.out.skipped_count == 0);
  CHECK(f.out.metadata == nullptr);
  CHECK(f.out.metadata_bytes == 0);
  CHECK(f.out.tensor_count == 1);
}

TEST_CASE("tensors and metadata that end at the end of data are read; one more byte fails with E_CORRUPT") {
  Fixture f;
  const std::uint64_t end = f.segments.plan().data_bytes;
  CHECK(f.read_with([=](CatalogueEntry& e) { e.tensors[1].offset = end - e.tensors[1].bytes; }) == FEEDLANE_OK);
  CHECK(f.read_with([=](CatalogueEntry& e) { e.tensors[1].offset = end - e.tensors[1].bytes + 1; }) ==
        FEEDLANE_E_CORRUPT);
  CHECK(f.read_with([=](CatalogueEntry& e) { e.head.metadata_offset = end - 5; }) == FEEDLANE_OK);
  CHECK(f.read_with([=](CatalogueEntry& e) { e.head.metadata_offset = end - 4; }) == FEEDLANE_E_CORRUPT);
}

TEST_CASE("an offset or a length that would wrap fails with E_CORRUPT, and the error has both numbers") {
  Fixture f;
  const std::uint64_t end = f.segments.plan().data_bytes;
  CHECK(f.read_with([](CatalogueEntry& e) { e.tensors[0].offset = UINT64_MAX; }) == FEEDLANE_E_CORRUPT);
  CHECK(f.read_with([](CatalogueEntry& e) { e.head.metadata_bytes = UINT64_MAX; }) == FEEDLANE_E_CORRUPT);
  CHECK(f.read_with([=](CatalogueEntry& e) { e.tensors[1].offset = end + 9; }) == FEEDLANE_E_CORRUPT);
  CHECK(std::string(f.error.argument) == "catalogue");
  CHECK(f.error.found == static_cast<std::int64_t>(end + 9));
  CHECK(f.error.needed == static_cast<std::int64_t>(end));
}

TEST_CASE("more tensors than a batch can have fail with E_CORRUPT") {
  Fixture f;
  const auto with = [](std::uint32_t count) {
    return [count](CatalogueEntry& e) {
      for (std::uint32_t i = 1; i < FEEDLANE_MAX_TENSORS; i++) e.tensors[i] = e.tensors[0];
      e.head.tensor_count = count;
    };
  };
  CHECK(f.read_with(with(FEEDLANE_MAX_TENSORS)) == FEEDLANE_OK);
  CHECK(f.read_with(with(FEEDLANE_MAX_TENSORS + 1)) == FEEDLANE_E_CORRUPT);
  CHECK(f.error.found == FEEDLANE_MAX_TENSORS + 1);
}

TEST_CASE("a tensor with an impossible type, dimensions or size fails with E_CORRUPT") {
  Fixture f;
  CHECK(f.read_with([](CatalogueEntry& e) { e.tensors[0].bytes++; }) == FEEDLANE_E_CORRUPT);
  CHECK(f.read_with([](CatalogueEntry& e) { e.tensors[0].ndim = FEEDLANE_MAX_NDIM + 1; }) == FEEDLANE_E_CORRUPT);
  CHECK(f.error.found == FEEDLANE_MAX_NDIM + 1);
  CHECK(f.read_with([](CatalogueEntry& e) { e.tensors[0].ndim = -1; }) == FEEDLANE_E_CORRUPT);
  CHECK(f.read_with([](CatalogueEntry& e) { e.tensors[1].shape[0] = -2; }) == FEEDLANE_E_CORRUPT);
  CHECK(f.read_with([](CatalogueEntry& e) { e.tensors[1].code = 9; }) == FEEDLANE_E_CORRUPT);
  CHECK(f.read_with([](CatalogueEntry& e) { e.tensors[1].bits = 7; }) == FEEDLANE_E_CORRUPT);
}

TEST_CASE("more indices than the slot's list has room for fail with E_CORRUPT") {
  Fixture f;
  const std::uint64_t room = f.segments.plan().geometry.list_bytes / sizeof(std::int64_t);
  CHECK(f.read_with([=](CatalogueEntry& e) { e.head.rows = room - 1; }) == FEEDLANE_OK);
  CHECK(f.read_with([=](CatalogueEntry& e) { e.head.rows = room; }) == FEEDLANE_E_CORRUPT);
  CHECK(f.read_with([](CatalogueEntry& e) { e.head.rows = UINT64_MAX; }) == FEEDLANE_E_CORRUPT);
  CHECK(f.read_with([](CatalogueEntry& e) { e.head.skipped = UINT64_MAX; }) == FEEDLANE_E_CORRUPT);
}

TEST_CASE("a name without a terminator is cut, and later changes of the catalogue do not reach the consumer") {
  Fixture f;
  CHECK(f.read_with([](CatalogueEntry& e) { std::memset(e.tensors[0].name, 'x', sizeof e.tensors[0].name); }) ==
        FEEDLANE_OK);
  const std::string cut(feedlane::shm::name_bytes - 1, 'x');
  CHECK(f.out.tensors[0].name == cut);
  std::memset(f.entry.get(), 'y', sizeof *f.entry);
  CHECK(f.out.tensors[0].name == cut);
  CHECK(f.out.tensors[0].bytes == 21);
}
