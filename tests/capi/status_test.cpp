// SPDX-License-Identifier: Apache-2.0
// Version, status names and texts, and what the library says of itself.
#include <doctest/doctest.h>

#include <cstring>
#include <set>
#include <string>

#include "support/api.hpp"

using namespace feedlane::test;

#if FEEDLANE_VERSION < FEEDLANE_VERSION_MAJOR * 10000
#error "FEEDLANE_VERSION is no number for #if"
#endif

TEST_CASE("the library has the header's ABI and version, also as #if constants") {
  CHECK(feedlane_abi_version() == FEEDLANE_ABI);
  int major = -1;
  int minor = -1;
  int patch = -1;
  char rest = 0;
  REQUIRE(std::sscanf(feedlane_version(), "%d.%d.%d%c", &major, &minor, &patch, &rest) == 3);
  CHECK(major == FEEDLANE_VERSION_MAJOR);  // the library's is meson.build's
  CHECK(minor == FEEDLANE_VERSION_MINOR);
  CHECK(patch == FEEDLANE_VERSION_PATCH);
  CHECK(FEEDLANE_VERSION == major * 10000 + minor * 100 + patch);
  CHECK_MESSAGE(feedlane_version() == feedlane_version(), "static");
}

TEST_CASE("every status has the name and the text of the header's table") {
  std::set<std::string> names;
#define CHECK_STATUS(name, number, text)                              \
  CHECK(std::string(feedlane_status_name(number)) == #name);          \
  CHECK(std::string(feedlane_status_text(number)) == text);           \
  CHECK_MESSAGE(FEEDLANE_##name == (number), "the define of " #name); \
  CHECK_MESSAGE(names.insert(#name).second, #name " is unique");
  FEEDLANE_STATUS_TABLE(CHECK_STATUS)
#undef CHECK_STATUS
}

TEST_CASE("the name of an unknown status number is UNKNOWN, and its text is never NULL") {
  for (const std::int32_t number : {1000, -1000, INT32_MAX, INT32_MIN}) {
    CHECK(std::string(feedlane_status_name(number)) == "UNKNOWN");
    REQUIRE(feedlane_status_text(number) != nullptr);
    CHECK(feedlane_status_text(number)[0] != '\0');
  }
}

TEST_CASE("feedlane_init zeroes the given number of bytes and sets size") {
  feedlane_batch b;
  std::memset(&b, 0x5a, sizeof b);
  feedlane_init(&b, sizeof b);
  feedlane_batch zero{};
  zero.size = sizeof zero;
  CHECK(std::memcmp(&b, &zero, sizeof b) == 0);

  SUBCASE("bytes beyond the given size are unchanged") {
    unsigned char bytes[48];
    std::memset(bytes, 0x5a, sizeof bytes);
    feedlane_init(bytes, 40);
    std::size_t size = 0;
    std::memcpy(&size, bytes, sizeof size);
    CHECK(size == 40);
    for (std::size_t i = 8; i < 40; i++) CHECK(bytes[i] == 0);
    for (std::size_t i = 40; i < sizeof bytes; i++) CHECK(bytes[i] == 0x5a);
  }
  SUBCASE("NULL or a size under 8 changes nothing") {
    feedlane_init(nullptr, 64);
    unsigned char bytes[8];
    std::memset(bytes, 0x5a, sizeof bytes);
    feedlane_init(bytes, 7);
    feedlane_init(bytes, 0);
    for (const unsigned char byte : bytes) CHECK(byte == 0x5a);
  }
}

TEST_CASE("an error struct is written up to its size") {
  SUBCASE("a shorter struct keeps the bytes behind it") {
    feedlane_error e;
    std::memset(&e, 0x5a, sizeof e);
    e.size = offsetof(feedlane_error, found);
    feedlane_sampler* s = nullptr;
    REQUIRE(sequential_sampler(-1, &s, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(e.code == FEEDLANE_E_ARGUMENT);
    CHECK(e.size == offsetof(feedlane_error, found));
    CHECK(e.found == 0x5a5a5a5a5a5a5a5a);
    CHECK(e.text[0] == 0x5a);
  }
  SUBCASE("a longer struct keeps its tail") {
    struct {
      feedlane_error known;
      std::uint64_t later = 77;
    } e;
    feedlane_init(&e.known, sizeof e.known);
    e.known.size = sizeof e;
    feedlane_sampler* s = nullptr;
    REQUIRE(sequential_sampler(-1, &s, &e.known) == FEEDLANE_E_ARGUMENT);
    CHECK(e.known.found == -1);
    CHECK(e.known.size == sizeof e);
    CHECK(e.later == 77);
  }
  SUBCASE("a struct whose size was never set is unchanged") {
    feedlane_error e;
    std::memset(&e, 0, sizeof e);
    feedlane_sampler* s = nullptr;
    CHECK(sequential_sampler(-1, &s, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(e.code == 0);
    CHECK(e.text[0] == '\0');
  }
  SUBCASE("NULL is accepted") {
    feedlane_sampler* s = nullptr;
    CHECK(sequential_sampler(-1, &s, nullptr) == FEEDLANE_E_ARGUMENT);
  }
  SUBCASE("members that do not concern the error are -1 or empty") {
    Error e;
    feedlane_sampler* s = nullptr;
    REQUIRE(sequential_sampler(-1, &s, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(e.worker == -1);
    CHECK(e.attempt == -1);
    CHECK(e.epoch == -1);
    CHECK(e.batch == -1);
    CHECK(e.sample == -1);
    CHECK(e.os_errno == 0);
    CHECK(e.transient == 0);
    CHECK(e.detail_len == 0);
    CHECK(e.detail == e.buffer.data());
    CHECK(e.detail_cap == e.buffer.size());
  }
}

// promise: seed-per-sample
TEST_CASE("a row's seed is a pure function of base seed, epoch and position, and changes with each of them") {
  std::set<std::uint64_t> seeds;
  std::size_t count = 0;
  for (const std::uint64_t base : {0ULL, 1ULL, 99ULL, ~0ULL})
    for (const std::int64_t epoch : {0, 1, 2, 1000})
      for (std::int64_t position = 0; position < 50; position++, count++) {
        const std::uint64_t seed = feedlane_row_seed(base, epoch, position);
        CHECK(seed == feedlane_row_seed(base, epoch, position));
        seeds.insert(seed);
      }
  CHECK(seeds.size() == count);
  // Part of the promise: a data set's augmentation stays the same from release to release.
  CHECK(feedlane_row_seed(0, 0, 0) == 0x568a9b0b1a2c05ec);
  CHECK(feedlane_row_seed(99, 3, 1000) == 0x8ff856bcca5f5b61);
}
