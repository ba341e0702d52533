// SPDX-License-Identifier: Apache-2.0
// Registrations of memory: whose they are, and what is true of them while the backend is at it or has failed.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>

#include "counting_table.hpp"
#include "support/process.hpp"
#include "support/sanitizers.hpp"
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

TEST_CASE("pinned: while one thread registers or unregisters memory, another thread can't unregister it") {
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

TEST_CASE("pinned: memory that the device table fails to unregister stays registered, and a retry is possible") {
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

namespace {

// With two worker processes, of which one is killed after `batches`, and is seen to be.
struct Killed {
  explicit Killed(feedlane_pool* p, std::int64_t samples = 60) : setup(samples, 2) {
    setup.workers(2);
    setup.config.pinned = p;
    loader = setup.create();
    begin(loader.get(), 0);
    wait_until_ready(loader.get(), 2);
  }
  void kill_one() const {
    const auto pid = static_cast<pid_t>(worker_of(loader.get(), 1).pid);
    REQUIRE(::kill(pid, SIGKILL) == 0);
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(loader.get(), nullptr);
      return stats_of(loader.get()).restarts == 1;
    }));
  }
  Setup setup;
  Loader loader;
};

}  // namespace

// promise: worker-punched-holes
TEST_CASE(
    "pinned: each slot is registered again before its next batch after a worker's death, but not after its leave") {
  // The arena is memory throughout, or has address space in between.
  for (const std::uint64_t slot_bytes : {std::uint64_t{0}, std::uint64_t{1} << 20}) {
    CAPTURE(slot_bytes);
    CountingTable table;
    feedlane_pool* p = table.make_pool();
    {
      Setup s(60, 2);
      s.workers(2);
      s.config.pinned = p;
      s.config.slot_bytes = slot_bytes;
      const Loader l = s.create();
      for (std::int64_t epoch = 0; epoch < 2; epoch++) {  // workers of their own
        begin(l.get(), epoch);
        wait_until_ready(l.get(), 2);  // one that attaches later is killed at the epoch's end
        (void)take_rest(l.get());
      }
      REQUIRE(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
      CHECK(table.most() == 1);
    }
    CHECK(table.there == 0);
    table.times.clear();
    {
      const Killed k(p);
      const int slots = table.there;
      k.kill_one();
      for (std::int32_t status = FEEDLANE_OK; status == FEEDLANE_OK;) {
        auto b = fresh<feedlane_batch>();
        status = feedlane_loader_next(k.loader.get(), patience_ns, &b, nullptr);
        if (status != FEEDLANE_OK) {
          CHECK(status == FEEDLANE_END);
          break;
        }
        CHECK_MESSAGE(table.times_of(b.tensors[0].data) == 2, "batch " << b.batch);
        REQUIRE(feedlane_batch_release(k.loader.get(), b.token) == FEEDLANE_OK);
      }
      CHECK(table.there == slots);
    }
    CHECK(table.there == 0);
    CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
  }
}

// promise: worker-punched-holes
TEST_CASE("pinned: next fails with E_DEVICE until a slot can be registered again, and no batch is lost") {
  for (bool CountingTable::*fails : {&CountingTable::refuses, &CountingTable::keeps}) {
    CountingTable table;
    feedlane_pool* p = table.make_pool();
    {
      const Killed k(p);
      table.*fails = true;
      k.kill_one();
      for (int i = 0; i < 3; i++) CHECK(take(k.loader.get()).status == FEEDLANE_E_DEVICE);
      table.*fails = false;
      wait_until_ready(k.loader.get(), 2);  // one that attaches later is killed at the epoch's end
      check_sequence(take_rest(k.loader.get()), 60, 2);
      begin(k.loader.get(), 1);
      wait_until_ready(k.loader.get(), 2);
      check_sequence(take_rest(k.loader.get()), 60, 2);
      CHECK(table.most() == 2);
    }
    CHECK(table.there == 0);
    CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
  }
}

// promise: forked-punches-hole
TEST_CASE("pinned: forked workers can't free the memory of registered slots, and nothing is registered again") {
  auto data = fresh<feedlane_dataset>();
  data.open = [](void* user_data, const feedlane_worker_info* info, void** self, feedlane_error*) {
    *static_cast<std::int32_t*>(user_data) = info->generation;
    *self = user_data;
    return std::int32_t{FEEDLANE_OK};
  };
  data.fetch = [](void* self, const feedlane_task* task, feedlane_error*) {
    std::memset(task->tensors[0].data, 5, task->tensors[0].bytes);
    const auto page = reinterpret_cast<std::uintptr_t>(task->tensors[0].data) / 4096 * 4096;
    const bool is_refused = ::madvise(reinterpret_cast<void*>(page), 4096, MADV_REMOVE) == -1 && errno == EPERM;
    const std::string beyond(5000, 'b');  // the reserved part: that memory can still be had
    if (feedlane_task_store(task, FEEDLANE_STORE_METADATA, beyond.data(), beyond.size(), nullptr) != FEEDLANE_OK)
      return std::int32_t{FEEDLANE_E_LIMIT};
    if (task->batch == 5 && *static_cast<std::int32_t*>(self) == 0) (void)::raise(SIGKILL);
    return is_refused ? std::int32_t{FEEDLANE_OK} : std::int32_t{FEEDLANE_E_SAMPLE};
  };
  std::int32_t generation = 0;
  data.user_data = &generation;
  CountingTable table;
  feedlane_pool* p = table.make_pool();
  {
    Setup s(60, 2);
    s.forked(2, data).fields({field("bytes", uint8_type, {4096})});
    s.config.pinned = p;
    const Loader l = s.create();
    for (const Taken& t : take_epoch(l.get(), 0)) CHECK(t.bytes[0] == std::string(2 * 4096, '\5'));
    CHECK(stats_of(l.get()).restarts >= 1);
    CHECK(table.most() == 1);
  }
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

TEST_CASE("pinned: a user can't unregister a pool's buffers or a loader's slots, whatever the address") {
  // The arena is memory throughout, or has address space in between.
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
    CHECK(feedlane_pool_release(p, buffer.token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_OK);
    CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
  }
}

#if !FEEDLANE_TEST_SANITIZED  // theirs does nothing
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

TEST_CASE("pinned: an mlock that fails half-way leaves nothing locked and is not reported as the limit") {
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

TEST_CASE("pinned: a registration that the limit refuses keeps the user's own locks") {
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
