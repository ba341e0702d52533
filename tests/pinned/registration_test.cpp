// SPDX-License-Identifier: Apache-2.0
// Registrations of memory: whose they are, and what is true of them while the backend is at it or has failed.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// A table whose calls stay in there until they are let go.
class SlowTable {
 public:
  SlowTable() {
    table_.user_data = this;
    table_.register_memory = [](void* self, void*, std::uint64_t, feedlane_error*) {
      return static_cast<SlowTable*>(self)->come();
    };
    table_.unregister_memory = table_.register_memory;
  }
  feedlane_pool* make_pool() {
    auto c = fresh<feedlane_pool_config>();
    c.custom = &table_;
    feedlane_pool* p = nullptr;
    REQUIRE(feedlane_pool_create(&c, &p, nullptr) == FEEDLANE_OK);
    return p;
  }
  std::atomic<bool> stays{false};
  std::atomic<int> calls{0};
  std::atomic<std::int32_t> answer{FEEDLANE_OK};

 private:
  std::int32_t come() {
    // Only the first: what must not come in meanwhile is counted rather than waited for.
    if (calls++ == 0) (void)eventually([&] { return !stays; });
    return answer;
  }
  feedlane_backend table_ = fresh<feedlane_backend>();
};

std::uint64_t registered_bytes(const feedlane_pool* p) {
  auto s = fresh<feedlane_pool_stats>();
  REQUIRE(feedlane_pool_get_stats(p, &s) == FEEDLANE_OK);
  return s.registered_bytes;
}

}  // namespace

TEST_CASE("pinned: one thread's registration, on its way in or out, isn't there for another to unregister") {
  SlowTable table;
  feedlane_pool* p = table.make_pool();
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  auto* const address = reinterpret_cast<void*>(64 * page);  // nobody reads it
  const auto meanwhile = [&](auto&& call) {
    table.calls = 0;
    table.stays = true;
    std::int32_t status = -1;
    std::thread other([&] { status = call(); });
    CHECK(eventually([&] { return table.calls == 1; }));
    CHECK(feedlane_pool_unregister(p, address, nullptr) == FEEDLANE_E_ARGUMENT);
    CHECK_MESSAGE(feedlane_pool_register(p, address, 1, nullptr) == FEEDLANE_E_STATE, "its place isn't free either");
    CHECK(registered_bytes(p) == page);
    table.stays = false;
    other.join();
    CHECK(table.calls == 1);
    return status;
  };
  CHECK(meanwhile([&] { return feedlane_pool_register(p, address, page, nullptr); }) == FEEDLANE_OK);
  CHECK(meanwhile([&] { return feedlane_pool_unregister(p, address, nullptr); }) == FEEDLANE_OK);
  CHECK(registered_bytes(p) == 0);
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

TEST_CASE("pinned: what the table fails to unregister stays registered, and can be tried again") {
  SlowTable table;
  feedlane_pool* p = table.make_pool();
  std::byte memory[100];
  REQUIRE(feedlane_pool_register(p, memory, sizeof memory, nullptr) == FEEDLANE_OK);
  const std::uint64_t bytes = registered_bytes(p);
  table.answer = FEEDLANE_E_DEVICE;
  for (int i = 0; i < 2; i++) CHECK(feedlane_pool_unregister(p, memory, nullptr) == FEEDLANE_E_DEVICE);
  CHECK(registered_bytes(p) == bytes);
  table.answer = FEEDLANE_OK;
  CHECK(feedlane_pool_unregister(p, memory, nullptr) == FEEDLANE_OK);
  CHECK(registered_bytes(p) == 0);
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

TEST_CASE("pinned: a pool's buffers and a loader's slots aren't the user's to unregister, at whatever address") {
  // The arena as one stretch, and one for each slot.
  for (const std::uint64_t slot_bytes : {std::uint64_t{0}, std::uint64_t{1} << 20}) {
    CAPTURE(slot_bytes);
    auto c = fresh<feedlane_pool_config>();
    c.buffers = 2;
    c.buffer_bytes = 8192;
    feedlane_pool* p = nullptr;
    REQUIRE(feedlane_pool_create(&c, &p, nullptr) == FEEDLANE_OK);
    auto buffer = fresh<feedlane_buffer>();
    REQUIRE(feedlane_pool_acquire(p, 0, &buffer, nullptr) == FEEDLANE_OK);
    {
      Setup s(2);
      s.config.pinned = p;
      s.config.slot_bytes = slot_bytes;
      const Loader l = s.create();
      begin(l.get(), 0);
      auto b = fresh<feedlane_batch>();
      REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
      const std::uint64_t bytes = registered_bytes(p);
      for (void* const theirs : {buffer.data, b.tensors[0].data})
        for (std::uintptr_t beyond = 0; beyond < 8192; beyond++) {
          auto* const address = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(theirs) + beyond);
          REQUIRE(feedlane_pool_unregister(p, address, nullptr) == FEEDLANE_E_ARGUMENT);
        }
      CHECK(registered_bytes(p) == bytes);
      CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
    }
    CHECK(registered_bytes(p) == 2 * c.buffer_bytes);
    CHECK(feedlane_pool_release(p, buffer.token) == FEEDLANE_OK);
    CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // theirs does nothing
namespace {

std::uint64_t locked_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmLck:")) return std::stoull(line.substr(6));
  return UINT64_MAX;
}

std::byte* map_pages(std::uint64_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

feedlane_pool* mlock_pool() {
  auto c = fresh<feedlane_pool_config>();
  c.backend = "mlock";
  feedlane_pool* p = nullptr;
  return feedlane_pool_create(&c, &p, nullptr) == FEEDLANE_OK ? p : nullptr;
}

}  // namespace

TEST_CASE("pinned: mlock that fails half-way keeps nothing locked, and isn't taken for the limit") {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  for (const std::uint64_t limit_pages : {std::uint64_t{64}, std::uint64_t{10}}) {
    CAPTURE(limit_pages);
    CHECK(in_child([&](Findings& f) {
            const rlimit limit{limit_pages * page, limit_pages * page};
            EXPECT(f, ::setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
            std::byte* const memory = map_pages(12 * page);
            if (::mlock(memory, 12 * page) != 0) return;  // the smaller limit binds this user
            EXPECT(f, ::munlock(memory, 12 * page) == 0);
            feedlane_pool* p = mlock_pool();
            EXPECT(f, ::munmap(memory + 8 * page, page) == 0);
            Error e;
            EXPECT(f, feedlane_pool_register(p, memory, 12 * page, &e) == FEEDLANE_E_OS);
            EXPECT(f, e.os_errno == ENOMEM);
            EXPECT(f, locked_kib() == 0);
            EXPECT(f, registered_bytes(p) == 0);
            EXPECT(f, feedlane_pool_register(p, memory, 8 * page, &e) == FEEDLANE_OK);
            EXPECT(f, locked_kib() == 8 * page / 1024);
            EXPECT(f, feedlane_pool_destroy(&p) == FEEDLANE_OK);
            EXPECT(f, locked_kib() == 0);
          }) == "");
  }
}

TEST_CASE("pinned: a limit that refuses leaves the user's own locks alone") {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  CHECK(in_child([&](Findings& f) {
          const rlimit limit{16 * page, 16 * page};
          EXPECT(f, ::setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
          EXPECT(f, ::geteuid() != 0 || ::setuid(65534) == 0);  // root may lock what it wants
          feedlane_pool* p = mlock_pool();
          std::byte* const memory = map_pages(32 * page);
          EXPECT(f, ::mlock(memory, 2 * page) == 0);
          EXPECT(f, feedlane_pool_register(p, memory, 32 * page, nullptr) == FEEDLANE_E_LIMIT);
          EXPECT(f, locked_kib() == 2 * page / 1024);
          EXPECT(f, feedlane_pool_destroy(&p) == FEEDLANE_OK);
        }) == "");
}
#endif
