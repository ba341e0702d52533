// SPDX-License-Identifier: Apache-2.0
// What every backend promises. Linked into a program for each kind of device, which says what devices there are.
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <set>

#include "devices.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

struct DestroyPool {
  void operator()(feedlane_pool* p) const { CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK); }
};
using Pool = std::unique_ptr<feedlane_pool, DestroyPool>;

constexpr std::uint64_t buffer_bytes = 8192;

Pool make_pool(Device& device, std::uint32_t buffers, std::uint64_t budget = 0) {
  feedlane_pool_config c = device.config();
  c.buffers = buffers;
  c.buffer_bytes = buffers == 0 ? 0 : buffer_bytes;
  c.budget_bytes = budget;
  feedlane_pool* p = nullptr;
  Error e;
  REQUIRE_MESSAGE(feedlane_pool_create(&c, &p, &e) == FEEDLANE_OK, std::string(e.text));
  return Pool(p);
}

feedlane_buffer acquire(feedlane_pool* p) {
  auto b = fresh<feedlane_buffer>();
  REQUIRE(feedlane_pool_acquire(p, patience_ns, &b, nullptr) == FEEDLANE_OK);
  return b;
}

feedlane_pool_stats stats_of(const feedlane_pool* p) {
  auto s = fresh<feedlane_pool_stats>();
  REQUIRE(feedlane_pool_get_stats(p, &s) == FEEDLANE_OK);
  return s;
}

struct Memory {
  Memory(Device& d, std::uint64_t bytes) : device(d), data(d.allocate(bytes)) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { device.free(data); }
  Device& device;
  void* data;
};

template <class F>
void for_each_device(F&& f) {
  for (const auto& entry : devices()) {  // no structured binding: INFO captures, which clang 14 refuses of one
    const std::string name(entry.first);
    INFO(name);
    const std::unique_ptr<Device> device = entry.second();
    f(*device);
  }
}

}  // namespace

TEST_CASE("pinned: buffers are disjoint whole pages with one owner each, and a token is invalid after its release") {
  for_each_device([](Device& device) {
    {
      const Pool p = make_pool(device, 3);
      std::set<std::byte*> seen;
      std::vector<feedlane_buffer> taken;
      for (int i = 0; i < 3; i++) {
        taken.push_back(acquire(p.get()));
        CHECK(taken.back().bytes == buffer_bytes);
        CHECK(reinterpret_cast<std::uintptr_t>(taken.back().data) % 4096 == 0);
        std::memset(taken.back().data, i, buffer_bytes);
        seen.insert(static_cast<std::byte*>(taken.back().data));
      }
      CHECK(seen.size() == 3);
      auto none = fresh<feedlane_buffer>();
      CHECK(feedlane_pool_acquire(p.get(), 0, &none, nullptr) == FEEDLANE_TIMEOUT);
      CHECK(feedlane_pool_acquire(p.get(), 1'000'000, &none, nullptr) == FEEDLANE_TIMEOUT);
      CHECK(stats_of(p.get()).in_use == 3);
      CHECK(feedlane_pool_release(p.get(), taken[1].token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_OK);
      CHECK(feedlane_pool_release(p.get(), taken[1].token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_E_STALE);
      const feedlane_buffer again = acquire(p.get());
      CHECK(again.data == taken[1].data);
      CHECK(again.token != taken[1].token);
      CHECK(feedlane_pool_release(p.get(), taken[1].token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_E_STALE);
      for (const std::uint64_t token : {taken[0].token, again.token, taken[2].token})
        CHECK(feedlane_pool_release(p.get(), token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_OK);
      const feedlane_pool_stats s = stats_of(p.get());
      CHECK(s.buffers == 3);
      CHECK(s.in_use == 0);
      CHECK(s.acquired == 4);
      CHECK(s.registered_bytes == 3 * buffer_bytes);
    }
  });
}

TEST_CASE("pinned: a thread that waits for a buffer gets the one that another thread releases") {
  for_each_device([](Device& device) {
    const Pool p = make_pool(device, 1);
    std::atomic<int> rounds{0};
    const auto work = [&] {
      for (int i = 0; i < 500; i++) {
        auto b = fresh<feedlane_buffer>();
        std::int32_t s = FEEDLANE_INTERRUPTED;
        while (s == FEEDLANE_INTERRUPTED) s = feedlane_pool_acquire(p.get(), patience_ns, &b, nullptr);
        if (s != FEEDLANE_OK) return;
        rounds += 1;
        (void)feedlane_pool_release(p.get(), b.token, FEEDLANE_NO_STREAM, nullptr);
      }
    };
    std::thread first(work), second(work), third(work);
    first.join();
    second.join();
    third.join();
    CHECK(rounds == 1500);
  });
}

TEST_CASE("pinned: once its stream has passed the copy, the data is on the device and the buffer is free") {
  for_each_device([](Device& device) {
    const Pool p = make_pool(device, 2);
    const Memory there(device, buffer_bytes);
    for (int i = 0; i < 20; i++) {
      const feedlane_buffer b = acquire(p.get());
      std::memset(b.data, 'a' + i, b.bytes);
      REQUIRE(feedlane_pool_copy(p.get(), there.data, b.data, b.bytes, device.stream(), nullptr) == FEEDLANE_OK);
      REQUIRE(feedlane_pool_release(p.get(), b.token, device.stream(), nullptr) == FEEDLANE_OK);
      CHECK(feedlane_pool_release(p.get(), b.token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_E_STALE);
      CHECK(feedlane_pool_release(p.get(), b.token, device.stream(), nullptr) == FEEDLANE_E_STALE);
      device.wait(device.stream());
      CHECK(device.read(there.data, b.bytes) == std::string(b.bytes, static_cast<char>('a' + i)));
    }
    const feedlane_buffer one = acquire(p.get()), two = acquire(p.get());
    CHECK(stats_of(p.get()).pending == 0);
    CHECK(feedlane_pool_release(p.get(), one.token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_OK);
    CHECK(feedlane_pool_release(p.get(), two.token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_OK);
  });
}

TEST_CASE("pinned: the user's own memory is registered by whole pages, once, within the budget") {
  for_each_device([](Device& device) {
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const Pool p = make_pool(device, 0, 4 * page);
    std::vector<std::byte> room(8 * page);
    std::byte* const start = room.data() + (page - reinterpret_cast<std::uintptr_t>(room.data()) % page);
    REQUIRE(feedlane_pool_register(p.get(), start + 100, page, nullptr) == FEEDLANE_OK);  // two pages
    CHECK(stats_of(p.get()).registered_bytes == 2 * page);
    CHECK(feedlane_pool_register(p.get(), start, 1, nullptr) == FEEDLANE_E_STATE);
    CHECK(feedlane_pool_register(p.get(), start + 2 * page - 1, 2, nullptr) == FEEDLANE_E_STATE);
    REQUIRE(feedlane_pool_register(p.get(), start + 2 * page, page, nullptr) == FEEDLANE_OK);
    Error e;
    CHECK(feedlane_pool_register(p.get(), start + 3 * page, 2 * page, &e) == FEEDLANE_E_LIMIT);
    CHECK(std::string(e.argument) == "config.budget_bytes");
    CHECK(e.found == static_cast<std::int64_t>(4 * page));
    CHECK(e.needed == static_cast<std::int64_t>(5 * page));
    CHECK(feedlane_pool_unregister(p.get(), start + 3 * page, nullptr) == FEEDLANE_E_ARGUMENT);
    CHECK(feedlane_pool_unregister(p.get(), start + 100, nullptr) == FEEDLANE_OK);
    CHECK(feedlane_pool_unregister(p.get(), start + 100, nullptr) == FEEDLANE_E_ARGUMENT);
    CHECK(feedlane_pool_unregister(p.get(), start + 2 * page, nullptr) == FEEDLANE_OK);
    CHECK(stats_of(p.get()).registered_bytes == 0);
  });
}

TEST_CASE("pinned: destroying a pool is refused while a buffer is acquired") {
  for_each_device([](Device& device) {
    feedlane_pool* p = make_pool(device, 1).release();
    const feedlane_buffer b = acquire(p);
    CHECK(feedlane_pool_destroy(&p) == FEEDLANE_E_STATE);
    REQUIRE(p != nullptr);
    CHECK(feedlane_pool_release(p, b.token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_OK);
    CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
    CHECK(p == nullptr);
  });
}

TEST_CASE("pinned: every copy is whole when several threads fill, copy and release buffers on a stream") {
  for_each_device([](Device& device) {
    constexpr int threads = 4, rounds = 200;
    const Pool p = make_pool(device, 3);
    const Memory there(device, std::uint64_t{threads} * rounds * buffer_bytes);
    std::atomic<int> failed{0};
    std::vector<std::thread> all;
    for (int t = 0; t < threads; t++)
      all.emplace_back([&, t] {
        for (int i = 0; i < rounds; i++) {
          auto b = fresh<feedlane_buffer>();
          if (feedlane_pool_acquire(p.get(), patience_ns, &b, nullptr) != FEEDLANE_OK) {
            failed++;
            return;
          }
          std::memset(b.data, (t * rounds + i) % 251, b.bytes);
          auto* const place =
              static_cast<std::byte*>(there.data) + static_cast<std::uint64_t>(t * rounds + i) * buffer_bytes;
          if (feedlane_pool_copy(p.get(), place, b.data, b.bytes, device.stream(), nullptr) != FEEDLANE_OK) failed++;
          if (feedlane_pool_release(p.get(), b.token, device.stream(), nullptr) != FEEDLANE_OK) failed++;
        }
      });
    for (std::thread& t : all) t.join();
    device.wait(device.stream());
    CHECK(failed == 0);
    const std::string got = device.read(there.data, std::uint64_t{threads} * rounds * buffer_bytes);
    int torn = 0;
    for (int i = 0; i < threads * rounds; i++)
      torn += got.compare(static_cast<std::size_t>(i) * buffer_bytes, buffer_bytes,
                          std::string(buffer_bytes, static_cast<char>(i % 251))) != 0;
    CHECK(torn == 0);
  });
}

// ---- with a loader ----

namespace {

// Every batch of an epoch by way of the device, released on its stream; `staged` with a thread that copies.
void check_epoch(Device& device, std::int32_t workers, std::int32_t staged) {
  const Pool p = make_pool(device, staged == 0 ? 0 : static_cast<std::uint32_t>(staged));
  constexpr std::int64_t samples = 60;
  Setup s(samples, 2);
  if (workers != 0) s.workers(workers);
  s.config.held = 2;
  s.config.pinned = p.get();
  s.config.staged = staged;
  feedlane_loader* l = s.create().release();
  if (staged == 0) CHECK(stats_of(p.get()).registered_bytes > 0);
  std::thread copier;
  if (staged != 0 && workers != 0)
    copier = std::thread([l] { CHECK(feedlane_loader_run_stager(l, nullptr) == FEEDLANE_OK); });
  const Memory there(device, 4096);
  for (int epoch = 0; epoch < 3; epoch++) {
    begin(l, epoch);
    std::int64_t expected = 0;
    for (;;) {
      auto b = fresh<feedlane_batch>();
      const std::int32_t status = feedlane_loader_next(l, patience_ns, &b, nullptr);
      if (status == FEEDLANE_INTERRUPTED) continue;
      if (status == FEEDLANE_END) break;
      REQUIRE(status == FEEDLANE_OK);
      REQUIRE(feedlane_pool_copy(p.get(), there.data, b.tensors[0].data, b.tensors[0].bytes, device.stream(),
                                 nullptr) == FEEDLANE_OK);
      if (epoch != 1) REQUIRE(feedlane_batch_release_on(l, b.token, device.stream(), nullptr) == FEEDLANE_OK);
      device.wait(device.stream());
      if (epoch == 1) REQUIRE(feedlane_batch_release(l, b.token) == FEEDLANE_OK);
      const std::string got = device.read(there.data, b.count * sizeof(std::int64_t));
      for (std::uint64_t row = 0; row < b.count; row++) {
        std::int64_t index = -1;
        std::memcpy(&index, got.data() + row * sizeof index, sizeof index);
        CHECK(index == expected++);
      }
    }
    CHECK(expected == samples);
  }
  CHECK(feedlane_loader_destroy(&l) == FEEDLANE_OK);
  if (copier.joinable()) copier.join();
  CHECK(stats_of(p.get()).in_use == 0);
}

}  // namespace

// promise: pinned-registered-once
TEST_CASE("pinned: a loader's arena is registered once, and its batches are copied and released on a stream") {
  for_each_device([](Device& device) {
    check_epoch(device, 0, 0);
    check_epoch(device, 2, 0);
  });
}

// promise: pinned-staged
TEST_CASE("pinned: staged batches are copied through the pool's buffers") {
  for_each_device([](Device& device) {
    check_epoch(device, 0, 3);
    check_epoch(device, 2, 3);
    check_epoch(device, 2, 7);
  });
}
