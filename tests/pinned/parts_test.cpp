// SPDX-License-Identifier: Apache-2.0
// Memory that is too large to be registered at once, in parts.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstdint>
#include <map>
#include <vector>

#include "support/skip.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

std::uint64_t registered_bytes(const feedlane_pool* p) {
  auto s = fresh<feedlane_pool_stats>();
  REQUIRE(feedlane_pool_get_stats(p, &s) == FEEDLANE_OK);
  return s.registered_bytes;
}

// The ranges that are registered, and the copies that were asked for; refuses the call with this number.
class PartsTable {
 public:
  struct Copy {
    std::uintptr_t to, from;
    std::uint64_t bytes;
  };

  feedlane_pool* make_pool(std::uint64_t buffer_bytes = 0) {
    table_.user_data = this;
    table_.register_memory = [](void* self, void* address, std::uint64_t bytes, feedlane_error*) {
      auto& t = *static_cast<PartsTable*>(self);
      if (++t.calls == t.refused) return std::int32_t{FEEDLANE_E_DEVICE};
      t.parts[reinterpret_cast<std::uintptr_t>(address)] = bytes;
      return std::int32_t{FEEDLANE_OK};
    };
    table_.unregister_memory = [](void* self, void* address, std::uint64_t bytes, feedlane_error*) {
      auto& t = *static_cast<PartsTable*>(self);
      if (++t.calls == t.refused) return std::int32_t{FEEDLANE_E_DEVICE};
      const auto found = t.parts.find(reinterpret_cast<std::uintptr_t>(address));
      CHECK(found != t.parts.end());
      CHECK(found->second == bytes);
      t.parts.erase(found);
      return std::int32_t{FEEDLANE_OK};
    };
    table_.copy = [](void* self, void* to, const void* from, std::uint64_t bytes, void*, feedlane_error*) {
      static_cast<PartsTable*>(self)->copies.push_back(
          {reinterpret_cast<std::uintptr_t>(to), reinterpret_cast<std::uintptr_t>(from), bytes});
      return std::int32_t{FEEDLANE_OK};
    };
    auto c = fresh<feedlane_pool_config>();
    c.custom = &table_;
    c.buffers = buffer_bytes != 0 ? 3 : 0;
    c.buffer_bytes = buffer_bytes;
    feedlane_pool* p = nullptr;
    REQUIRE(feedlane_pool_create(&c, &p, nullptr) == FEEDLANE_OK);
    return p;
  }
  std::map<std::uintptr_t, std::uint64_t> parts;
  std::vector<Copy> copies;
  int calls = 0;
  int refused = 0;

 private:
  feedlane_backend table_ = fresh<feedlane_backend>();
};

}  // namespace

// Nobody reads the memory of these tests, so they need no 600 GiB.
TEST_CASE("pinned: less than 512 GiB are registered at once") {
  PartsTable table;
  feedlane_pool* p = table.make_pool();
  REQUIRE(feedlane_pool_register(p, reinterpret_cast<void*>(64 * gib), 511 * gib, nullptr) == FEEDLANE_OK);
  CHECK(table.parts.size() == 1);
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
  CHECK(table.parts.empty());
}

TEST_CASE("pinned: 600 GiB are registered in parts, and unregistered as they were registered") {
  PartsTable table;
  feedlane_pool* p = table.make_pool();
  auto* const memory = reinterpret_cast<void*>(64 * gib);
  REQUIRE(feedlane_pool_register(p, memory, 600 * gib, nullptr) == FEEDLANE_OK);
  const std::map<std::uintptr_t, std::uint64_t> wanted{
      {64 * gib, 256 * gib}, {320 * gib, 256 * gib}, {576 * gib, 88 * gib}};
  CHECK(table.parts == wanted);
  CHECK(registered_bytes(p) == 600 * gib);
  CHECK(feedlane_pool_unregister(p, memory, nullptr) == FEEDLANE_OK);
  CHECK(table.parts.empty());
  CHECK(registered_bytes(p) == 0);
  REQUIRE(feedlane_pool_register(p, memory, 600 * gib, nullptr) == FEEDLANE_OK);
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
  CHECK_MESSAGE(table.parts.empty(), "the pool's end unregisters every part");
}

TEST_CASE("pinned: if a part can't be registered, none is") {
  PartsTable table;
  feedlane_pool* p = table.make_pool();
  auto* const memory = reinterpret_cast<void*>(64 * gib);
  table.refused = 3;
  CHECK(feedlane_pool_register(p, memory, 600 * gib, nullptr) == FEEDLANE_E_DEVICE);
  CHECK(table.calls == 5);
  CHECK(table.parts.empty());
  CHECK(registered_bytes(p) == 0);
  CHECK(feedlane_pool_register(p, memory, 600 * gib, nullptr) == FEEDLANE_OK);
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

TEST_CASE("pinned: parts that can't be unregistered stay registered, and a retry is possible") {
  PartsTable table;
  feedlane_pool* p = table.make_pool();
  auto* const memory = reinterpret_cast<void*>(64 * gib);
  REQUIRE(feedlane_pool_register(p, memory, 600 * gib, nullptr) == FEEDLANE_OK);
  table.refused = 5;  // the second to be unregistered
  CHECK(feedlane_pool_unregister(p, memory, nullptr) == FEEDLANE_E_DEVICE);
  CHECK(table.parts.size() == 2);
  CHECK(registered_bytes(p) == 512 * gib);
  CHECK(feedlane_pool_unregister(p, memory, nullptr) == FEEDLANE_OK);
  CHECK(table.parts.empty());
  CHECK(registered_bytes(p) == 0);
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

TEST_CASE("pinned: the pool's end unregisters what it can") {
  PartsTable table;
  feedlane_pool* p = table.make_pool();
  REQUIRE(feedlane_pool_register(p, reinterpret_cast<void*>(64 * gib), 600 * gib, nullptr) == FEEDLANE_OK);
  table.refused = 5;  // the second to be unregistered
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
  CHECK(table.parts.size() == 1);
}

TEST_CASE("pinned: a copy of memory in two parts is divided, any other is not") {
  PartsTable table;
  feedlane_pool* p = table.make_pool();
  REQUIRE(feedlane_pool_register(p, reinterpret_cast<void*>(64 * gib), 600 * gib, nullptr) == FEEDLANE_OK);
  const auto copy = [&](std::uint64_t from, std::uint64_t bytes) {
    table.copies.clear();
    REQUIRE(feedlane_pool_copy(p, reinterpret_cast<void*>(gib), reinterpret_cast<void*>(from), bytes, nullptr,
                               nullptr) == FEEDLANE_OK);
  };
  copy(319 * gib, gib);
  CHECK(table.copies.size() == 1);
  copy(320 * gib, 256 * gib);
  CHECK(table.copies.size() == 1);
  copy(gib, 2 * gib);  // not registered
  CHECK(table.copies.size() == 1);
  copy(663 * gib, 2 * gib);  // its last half isn't registered
  CHECK(table.copies.size() == 2);
  copy(319 * gib, 300 * gib);
  REQUIRE(table.copies.size() == 3);
  for (const auto& [to, from, bytes] : table.copies) CHECK(to - gib == from - 319 * gib);
  CHECK(table.copies[0].bytes == gib);
  CHECK(table.copies[1].bytes == 256 * gib);
  CHECK(table.copies[2].bytes == 43 * gib);
  CHECK(feedlane_pool_unregister(p, reinterpret_cast<void*>(64 * gib), nullptr) == FEEDLANE_OK);
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

TEST_CASE("pinned: no buffer of a pool lies in two parts") {
  // The pool maps its buffers, of which nothing is touched here.
  void* const room = ::mmap(nullptr, 600 * gib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return feedlane::test::skip("the kernel maps no 600 GiB (vm.overcommit_memory)");
  REQUIRE(::munmap(room, 600 * gib) == 0);
  PartsTable table;
  feedlane_pool* p = table.make_pool(200 * gib);
  REQUIRE(table.parts.size() == 3);
  for (const auto& [first, bytes] : table.parts) CHECK(bytes == 200 * gib);
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
  CHECK(table.parts.empty());
}
