// SPDX-License-Identifier: Apache-2.0
// Registered memory without a device: the backends that run everywhere, and what only a stream that can be held up shows.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "devices.hpp"
#include "support/process.hpp"
#include "support/sanitizers.hpp"
#include "support/trainer.hpp"

namespace feedlane::test {

std::vector<std::pair<std::string, std::function<std::unique_ptr<Device>()>>> devices() {
  return {{"none", [] { return std::make_unique<HostDevice>("none"); }},
          {"mlock", [] { return std::make_unique<HostDevice>("mlock"); }},
          {"a table of the user's", [] { return std::make_unique<ThreadDevice>(); }}};
}

}  // namespace feedlane::test

using namespace feedlane::test;

namespace {

feedlane_pool* pool_on(Device& device, std::uint32_t buffers, std::uint64_t bytes = 8192) {
  feedlane_pool_config c = device.config();
  c.buffers = buffers;
  c.buffer_bytes = buffers == 0 ? 0 : bytes;
  feedlane_pool* p = nullptr;
  Error e;
  REQUIRE_MESSAGE(feedlane_pool_create(&c, &p, &e) == FEEDLANE_OK, std::string(e.text));
  return p;
}

feedlane_batch next(feedlane_loader* l) {
  auto b = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK);
  return b;
}

}  // namespace

#if !FEEDLANE_TEST_SANITIZED  // theirs does nothing, and nothing is refused
// promise: machine-memlock
TEST_CASE("pinned: a pool beyond RLIMIT_MEMLOCK fails with E_LIMIT, the bytes needed and the bytes left") {
  CHECK(in_child([](Findings& f) {
          const rlimit limit{std::uint64_t{64} << 10, std::uint64_t{64} << 10};
          EXPECT(f, ::setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
          EXPECT(f, ::geteuid() != 0 || ::setuid(65534) == 0);  // root may lock what it wants
          HostDevice device("mlock");
          feedlane_pool_config c = device.config();
          c.buffers = 4;
          c.buffer_bytes = std::uint64_t{32} << 10;
          feedlane_pool* p = nullptr;
          Error e;
          EXPECT(f, feedlane_pool_create(&c, &p, &e) == FEEDLANE_E_LIMIT);
          EXPECT(f, p == nullptr);
          EXPECT(f, std::string(e.argument) == "RLIMIT_MEMLOCK");
          EXPECT(f, e.found == 64 << 10);
          EXPECT(f, e.needed == 128 << 10);
          c.buffers = 1;
          EXPECT(f, feedlane_pool_create(&c, &p, &e) == FEEDLANE_OK);
          std::vector<std::byte> more(64 << 10);
          EXPECT(f, feedlane_pool_register(p, more.data(), more.size(), &e) == FEEDLANE_E_LIMIT);
          EXPECT(f, e.found == 32 << 10);
          EXPECT(f, feedlane_pool_destroy(&p) == FEEDLANE_OK);
        }) == "");
}
#endif

TEST_CASE("pinned: registered memory without a DLPack device type can't be exported as pinned") {
  HostDevice device("none");
  feedlane_pool* p = pool_on(device, 0);
  {
    Setup s(4);
    s.config.pinned = p;
    const Loader l = s.create();
    begin(l.get(), 0);
    const feedlane_batch b = next(l.get());
    void* out = nullptr;
    CHECK(feedlane_batch_dlpack(l.get(), b.token, 0, FEEDLANE_DLPACK_PINNED, &out, nullptr) == FEEDLANE_E_STATE);
    CHECK(out == nullptr);
    CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  }
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

// promise: machine-device-refuses
TEST_CASE("pinned: a refused registration undoes the registrations before it, and its error has the backend's text") {
  ThreadDevice device;
  feedlane_pool* p = pool_on(device, 0);
  Setup s(8);
  s.config.pinned = p;
  s.config.slot_bytes = 1 << 20;  // stretches apart: one registration a slot
  for (const int good : {0, 1}) {
    device.refuse_after(good);
    Loader l;
    Error e;
    CHECK(s.try_create(l, &e) == FEEDLANE_E_DEVICE);
    CHECK(e.says("no room in the device's tables"));
    CHECK(device.registered().empty());
  }
  device.refuse_after(-1);
  Loader l = s.create();
  CHECK(device.registered().size() == stats_of(l.get()).slots);
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_E_STATE);
  l.reset();
  CHECK(device.registered().empty());
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

TEST_CASE("pinned: next waits and does not return SLOTS_HELD while a release is pending on a stream") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    ThreadDevice device;
    feedlane_pool* p = pool_on(device, 0);
    {
      Setup s(20);
      if (workers != 0) s.workers(workers).config.prefetch_factor = 1;
      s.config.pinned = p;
      const Loader l = s.create();
      begin(l.get(), 0);
      device.only_stream().hold();
      std::vector<feedlane_batch> taken;
      for (std::uint64_t i = 0; i < stats_of(l.get()).slots; i++) taken.push_back(next(l.get()));
      auto b = fresh<feedlane_batch>();
      CHECK(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_SLOTS_HELD);
      REQUIRE(feedlane_batch_release_on(l.get(), taken[0].token, device.stream(), nullptr) == FEEDLANE_OK);
      CHECK(feedlane_loader_next(l.get(), 1'000'000, &b, nullptr) == FEEDLANE_TIMEOUT);
      std::thread soon([&] { device.only_stream().go_on(); });
      const feedlane_batch following = next(l.get());
      soon.join();
      CHECK(following.batch == static_cast<std::int64_t>(taken.size()));
      CHECK_MESSAGE(feedlane_batch_release(l.get(), taken[0].token) == FEEDLANE_E_STALE, "its slot has another batch");
      taken[0] = following;
      for (const feedlane_batch& held : taken) CHECK(feedlane_batch_release(l.get(), held.token) == FEEDLANE_OK);
    }
    CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
  }
}

TEST_CASE("pinned: a pool can be destroyed after its loader, although a stream's callback has not returned") {
  for (int round = 0; round < 300; round++) {
    ThreadDevice device;
    feedlane_pool* p = pool_on(device, 0);
    Setup s(8);
    s.config.pinned = p;
    Loader l = s.create();
    begin(l.get(), 0);
    std::vector<feedlane_batch> taken;
    for (std::uint64_t i = 0; i < stats_of(l.get()).slots; i++) taken.push_back(next(l.get()));
    device.only_stream().hold();
    for (const feedlane_batch& held : taken)
      REQUIRE(feedlane_batch_release_on(l.get(), held.token, device.stream(), nullptr) == FEEDLANE_OK);
    std::thread soon([&] { device.only_stream().go_on(); });
    const feedlane_batch last = next(l.get());  // the callback wakes this thread, and then has a little left to do
    REQUIRE(feedlane_batch_release(l.get(), last.token) == FEEDLANE_OK);
    l.reset();
    CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
    soon.join();
  }
}

// promise: pinned-driver-failure, machine-stream-fails
TEST_CASE("pinned: a stream that fails frees the buffers and slots that wait for it and is reported once") {
  ThreadDevice device;
  feedlane_pool* p = pool_on(device, 1);
  auto buffer = fresh<feedlane_buffer>();
  REQUIRE(feedlane_pool_acquire(p, 0, &buffer, nullptr) == FEEDLANE_OK);
  CHECK_MESSAGE(feedlane_pool_release(p, buffer.token, nullptr, nullptr) == FEEDLANE_E_DEVICE, "no such stream");
  device.only_stream().hold();
  REQUIRE(feedlane_pool_release(p, buffer.token, device.stream(), nullptr) == FEEDLANE_OK);
  {
    Setup s(8);
    s.config.pinned = p;
    const Loader l = s.create();
    begin(l.get(), 0);
    const feedlane_batch b = next(l.get());
    CHECK(feedlane_batch_release_on(l.get(), b.token, nullptr, nullptr) == FEEDLANE_E_DEVICE);
    REQUIRE(feedlane_batch_release_on(l.get(), b.token, device.stream(), nullptr) == FEEDLANE_OK);
    device.only_stream().fail();
    device.only_stream().wait();
    CHECK(stats_of(l.get()).slots_held == 0);
    auto event = fresh<feedlane_event>();
    REQUIRE(feedlane_loader_event(l.get(), &event) == FEEDLANE_OK);
    CHECK(event.kind == FEEDLANE_EVENT_DEVICE_FAILED);
    CHECK(event.what.code == FEEDLANE_E_DEVICE);
    const feedlane_batch second = next(l.get());
    CHECK(second.batch == 1);
    CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_E_STALE);
    CHECK(feedlane_batch_release(l.get(), second.token) == FEEDLANE_OK);
  }
  auto s = fresh<feedlane_pool_stats>();
  CHECK(feedlane_pool_get_stats(p, &s) == FEEDLANE_OK);
  CHECK(s.failures == 1);
  CHECK(s.pending == 0);
  CHECK(feedlane_pool_acquire(p, 0, &buffer, nullptr) == FEEDLANE_E_DEVICE);
  CHECK(feedlane_pool_acquire(p, 0, &buffer, nullptr) == FEEDLANE_OK);
  CHECK(feedlane_pool_release(p, buffer.token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_OK);
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

TEST_CASE("pinned: if a stream fails while two threads wait for a buffer, one gets the error and one the buffer") {
  constexpr std::int64_t long_ns = 6'000'000'000;
  for (int round = 0; round < 20; round++) {
    ThreadDevice device;
    feedlane_pool* p = pool_on(device, 1);
    auto buffer = fresh<feedlane_buffer>();
    REQUIRE(feedlane_pool_acquire(p, 0, &buffer, nullptr) == FEEDLANE_OK);
    device.only_stream().hold();
    REQUIRE(feedlane_pool_release(p, buffer.token, device.stream(), nullptr) == FEEDLANE_OK);
    std::atomic<int> told{0}, served{0};
    std::atomic<pid_t> ids[2] = {0, 0};
    std::vector<std::thread> both;
    for (std::atomic<pid_t>& id : ids)
      both.emplace_back([&] {
        id = ::gettid();
        auto mine = fresh<feedlane_buffer>();
        const std::int32_t status = feedlane_pool_acquire(p, long_ns, &mine, nullptr);
        told += status == FEEDLANE_E_DEVICE ? 1 : 0;
        if (status == FEEDLANE_OK && feedlane_pool_release(p, mine.token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_OK)
          served += 1;
      });
    CHECK(eventually([&] { return ids[0] != 0 && ids[1] != 0 && is_asleep(ids[0]) && is_asleep(ids[1]); }));
    const auto before = std::chrono::steady_clock::now();
    device.only_stream().fail();
    for (std::thread& one : both) one.join();
    REQUIRE(std::chrono::steady_clock::now() - before < std::chrono::nanoseconds(long_ns / 2));
    CHECK(told == 1);
    CHECK(served == 1);
    CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
  }
}

TEST_CASE(
    "pinned: a loader destroyed before its stream is done lives until then and is freed by the pool's next call") {
  ThreadDevice device;
  feedlane_pool* p = pool_on(device, 0);
  Setup s(8);
  s.config.pinned = p;
  feedlane_loader* l = s.create().release();
  begin(l, 0);
  const feedlane_batch b = next(l);
  device.only_stream().hold();
  REQUIRE(feedlane_batch_release_on(l, b.token, device.stream(), nullptr) == FEEDLANE_OK);
  CHECK(feedlane_loader_destroy(&l) == FEEDLANE_OK);
  CHECK(mappings_of("feedlane-data") == 1);
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_E_STATE);
  device.only_stream().go_on();
  device.only_stream().wait();
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
  CHECK(mappings_of("feedlane-") == 0);
  CHECK(device.registered().empty());
}

// ---- staged ----

// promise: machine-no-copy-thread
TEST_CASE("pinned: a staged loader without a copying thread makes next fail after start_timeout_ns with this cause") {
  HostDevice device("none");
  feedlane_pool* p = pool_on(device, 2);
  {
    Setup s(8);
    s.workers(1);
    s.config.pinned = p;
    s.config.staged = 2;
    s.config.start_timeout_ns = 300'000'000;
    Loader l = s.create();
    begin(l.get(), 0);
    auto b = fresh<feedlane_batch>();
    Error e;
    for (int i = 0; i < 2; i++) {
      CHECK(feedlane_loader_next(l.get(), patience_ns, &b, &e) == FEEDLANE_E_PEER_DEAD);
      CHECK(e.says("feedlane_loader_run_stager"));
    }
    std::thread copier([raw = l.get()] { CHECK(feedlane_loader_run_stager(raw, nullptr) == FEEDLANE_OK); });
    // It takes its time to come: until then the answer stays the same.
    std::int32_t status = FEEDLANE_E_PEER_DEAD;
    while (status == FEEDLANE_E_PEER_DEAD) status = feedlane_loader_next(l.get(), patience_ns, &b, &e);
    CHECK(status == FEEDLANE_OK);
    CHECK(b.batch == 0);
    CHECK_MESSAGE(feedlane_loader_run_stager(l.get(), &e) == FEEDLANE_E_STATE, "one thread at a time");
    CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
    l.reset();
    copier.join();
  }
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

TEST_CASE("pinned: a staged loader fails with E_LIMIT and the number of free buffers if its pool has too few") {
  HostDevice device("none");
  feedlane_pool* p = pool_on(device, 3);
  {
    auto b = fresh<feedlane_buffer>();
    REQUIRE(feedlane_pool_acquire(p, 0, &b, nullptr) == FEEDLANE_OK);
    Setup s(8);
    s.config.pinned = p;
    s.config.staged = 3;
    Loader l;
    Error e;
    CHECK(s.try_create(l, &e) == FEEDLANE_E_LIMIT);
    CHECK(std::string(e.argument) == "config.staged");
    CHECK(e.found == 2);
    CHECK(e.needed == 3);
    CHECK(feedlane_pool_release(p, b.token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_OK);
    CHECK(s.try_create(l, &e) == FEEDLANE_OK);
  }
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

// promise: pinned-staged
TEST_CASE("pinned: a trainer that holds every staged buffer gets SLOTS_HELD, and next continues after a release") {
  HostDevice device("none");
  feedlane_pool* p = pool_on(device, 2);
  {
    Setup s(40);
    s.workers(2).config.prefetch_factor = 4;
    s.config.pinned = p;
    s.config.staged = 2;
    Loader l = s.create();
    std::thread copier([raw = l.get()] { CHECK(feedlane_loader_run_stager(raw, nullptr) == FEEDLANE_OK); });
    begin(l.get(), 0);
    const feedlane_batch first = next(l.get()), second = next(l.get());
    auto b = fresh<feedlane_batch>();
    Error e;
    CHECK(feedlane_loader_next(l.get(), patience_ns, &b, &e) == FEEDLANE_SLOTS_HELD);
    CHECK(std::string(e.argument) == "config.staged");
    CHECK(*static_cast<const std::int64_t*>(first.tensors[0].data) == 0);
    CHECK(*static_cast<const std::int64_t*>(second.tensors[0].data) == 1);
    CHECK(feedlane_batch_release(l.get(), first.token) == FEEDLANE_OK);
    for (int i = 2; i < 40; i++) {
      const feedlane_batch taken = next(l.get());
      CHECK(taken.batch == i);
      CHECK(*static_cast<const std::int64_t*>(taken.tensors[0].data) == i);
      CHECK(feedlane_batch_release(l.get(), taken.token) == FEEDLANE_OK);
    }
    CHECK(feedlane_batch_release(l.get(), second.token) == FEEDLANE_OK);
    l.reset();
    copier.join();
  }
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

TEST_CASE("pinned: a staged epoch that is abandoned in the middle keeps no buffer") {
  HostDevice device("none");
  feedlane_pool* p = pool_on(device, 5);
  std::vector<feedlane_buffer> buffers(5, fresh<feedlane_buffer>());
  for (feedlane_buffer& b : buffers) REQUIRE(feedlane_pool_acquire(p, 0, &b, nullptr) == FEEDLANE_OK);
  for (const feedlane_buffer& b : buffers)
    REQUIRE(feedlane_pool_release(p, b.token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_OK);
  const auto is_staged = [&](const void* data) {
    return std::any_of(buffers.begin(), buffers.end(), [&](const feedlane_buffer& b) { return b.data == data; });
  };
  {
    Setup s(200, 4);
    s.workers(2).config.prefetch_factor = 4;
    s.config.keep_workers = 1;
    s.config.pinned = p;
    s.config.staged = 5;
    s.config.out_of_order = 1;
    Loader l = s.create();
    std::thread copier([raw = l.get()] { CHECK(feedlane_loader_run_stager(raw, nullptr) == FEEDLANE_OK); });
    for (int epoch = 0; epoch < 50; epoch++) {
      begin(l.get(), epoch);
      for (int i = 0; i < epoch % 7; i++) {
        const feedlane_batch taken = next(l.get());
        CHECK(is_staged(taken.tensors[0].data));
        for (std::uint64_t row = 0; row < taken.count; row++)
          CHECK(static_cast<const std::int64_t*>(taken.tensors[0].data)[row] == taken.indices[row]);
        CHECK(feedlane_batch_release(l.get(), taken.token) == FEEDLANE_OK);
      }
    }
    begin(l.get(), 50);
    CHECK(take_rest(l.get()).size() == 50);
    l.reset();
    copier.join();
  }
  auto stats = fresh<feedlane_pool_stats>();
  CHECK(feedlane_pool_get_stats(p, &stats) == FEEDLANE_OK);
  CHECK(stats.in_use == 0);
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

TEST_CASE("pinned: a staged batch larger than a buffer fails with E_SAMPLE and the needed size, and others follow") {
  HostDevice device("none");
  feedlane_pool* p = pool_on(device, 2);
  {
    Setup s(6);
    feedlane_dataset table = s.dataset;
    table.get = nullptr;
    table.fetch = [](void*, const feedlane_task* task, feedlane_error* err) -> std::int32_t {
      auto full = fresh<feedlane_field>();
      full.dtype = {1, 8, 1};
      full.name = "bytes";
      full.ndim = 1;
      full.shape[0] = task->indices[0] == 2 ? 20'000 : 100;
      return feedlane_task_tensor(task, static_cast<std::int32_t>(task->tensor_count), &full, nullptr, err);
    };
    s.forked(0, table);
    s.config.pinned = p;
    s.config.staged = 2;
    const Loader l = s.create();
    begin(l.get(), 0);
    const std::vector<Taken> all = take_outcomes(l.get());
    REQUIRE(all.size() == 6);
    for (std::size_t i = 0; i < all.size(); i++) CHECK(all[i].status == (i == 2 ? FEEDLANE_E_SAMPLE : FEEDLANE_OK));
    CHECK(all[2].argument == "pool.buffer_bytes");
    CHECK(all[2].found == 8192);
    CHECK(all[2].needed >= 20'000);
  }
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}
