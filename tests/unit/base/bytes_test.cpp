// SPDX-License-Identifier: Apache-2.0
// Numbers as bytes, and their checksum.
#include "base/bytes.hpp"

#include <doctest/doctest.h>

using feedlane::ByteReader;
using feedlane::ByteWriter;
using feedlane::checksum;

namespace {

std::vector<std::byte> sample() {
  std::vector<std::byte> bytes;
  ByteWriter w(bytes);
  w.u32(0x01020304);
  w.u64(UINT64_MAX - 1);
  w.i64(-2);
  w.blob(std::vector<std::byte>{std::byte{7}, std::byte{8}});
  return bytes;
}

}  // namespace

TEST_CASE("ByteWriter appends numbers in little-endian order") {
  std::vector<std::byte> bytes{std::byte{9}};
  ByteWriter(bytes).u32(0x01020304);
  CHECK(bytes == std::vector<std::byte>{std::byte{9}, std::byte{4}, std::byte{3}, std::byte{2}, std::byte{1}});
}

TEST_CASE("ByteReader reads the numbers and the blob that ByteWriter wrote") {
  const auto bytes = sample();
  CHECK(bytes.size() == 4 + 8 + 8 + 8 + 2);
  ByteReader r(bytes);
  CHECK(r.u32() == 0x01020304);
  CHECK(r.u64() == UINT64_MAX - 1);
  CHECK(r.i64() == -2);
  const auto blob = r.blob();
  REQUIRE(blob.size() == 2);
  CHECK(blob[1] == std::byte{8});
  CHECK(r.ok());
  CHECK(r.left() == 0);
}

TEST_CASE("ByteReader detects bytes that are truncated at any length, and reads nothing beyond their end") {
  const auto bytes = sample();
  for (std::size_t length = 0; length < bytes.size(); length++) {
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    ByteReader r(cut);
    (void)r.u32();
    (void)r.u64();
    (void)r.i64();
    CHECK(r.blob().empty());
    CHECK(!r.ok());
    CHECK_MESSAGE(r.u32() == 0, "nothing after the first failure");
  }
}

TEST_CASE("a blob with a length of 2^64 - 1 bytes is refused") {
  std::vector<std::byte> bytes;
  ByteWriter(bytes).u64(UINT64_MAX);
  ByteReader r(bytes);
  CHECK(r.blob().empty());
  CHECK(!r.ok());
}

TEST_CASE("a change of any one byte changes the checksum") {
  auto bytes = sample();
  const std::uint64_t sum = checksum(bytes);
  for (std::byte& b : bytes) {
    b ^= std::byte{0x10};
    CHECK(checksum(bytes) != sum);
    b ^= std::byte{0x10};
  }
  CHECK(checksum({}) == 0xcbf29ce484222325);
}
