// SPDX-License-Identifier: Apache-2.0
// Streams that use a batch: nobody's token is good for it any more, and its slot isn't free before they have come so far.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "device.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"
#include "tensors/dlpack_abi.hpp"

using namespace feedlane::test;

namespace {

// A loader on a device whose streams can be held up.
struct Pinned {
  explicit Pinned(std::int64_t samples, std::int32_t workers = 0) : setup(samples) {
    const feedlane_pool_config c = device.config();
    REQUIRE(feedlane_pool_create(&c, &pool, nullptr) == FEEDLANE_OK);
    if (workers != 0) setup.workers(workers);
    setup.config.pinned = pool;
    loader = setup.create();
    begin(l(), 0);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() {
    loader.reset();
    for (ThreadDevice::Stream* s : {&device.only_stream(), &second, &third, &fourth, &fifth}) {
      s->go_on();
      s->wait();
    }
    CHECK(feedlane_pool_destroy(&pool) == FEEDLANE_OK);
    CHECK(device.registered().empty());
  }
  [[nodiscard]] feedlane_loader* l() const { return loader.get(); }
  ThreadDevice::Stream& first() { return device.only_stream(); }
  std::uint64_t take_token() const {
    auto b = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(l(), patience_ns, &b, nullptr) == FEEDLANE_OK);
    return b.token;
  }
  std::int32_t record(std::uint64_t token, ThreadDevice::Stream& stream) const {
    return feedlane_batch_record_stream(l(), token, &stream, nullptr);
  }
  [[nodiscard]] std::uint64_t slots_held() const { return stats_of(l()).slots_held; }

  ThreadDevice device;
  ThreadDevice::Stream second, third, fourth, fifth;
  feedlane_pool* pool = nullptr;
  Setup setup;
  Loader loader;
};

DLManagedTensorVersioned* export_tensor(feedlane_loader* l, std::uint64_t token) {
  void* out = nullptr;
  REQUIRE(feedlane_batch_dlpack(l, token, 0, 0, &out, nullptr) == FEEDLANE_OK);
  return static_cast<DLManagedTensorVersioned*>(out);
}

}  // namespace

TEST_CASE("pinned: a batch released on a stream can't be used again, and only that stream frees its slot") {
  Pinned p(4);
  const std::uint64_t token = p.take_token();
  p.first().hold();
  REQUIRE(feedlane_batch_release_on(p.l(), token, &p.first(), nullptr) == FEEDLANE_OK);
  CHECK(feedlane_batch_release(p.l(), token) == FEEDLANE_E_STALE);
  CHECK(feedlane_batch_release_on(p.l(), token, &p.first(), nullptr) == FEEDLANE_E_STALE);
  CHECK(feedlane_batch_retain(p.l(), token) == FEEDLANE_E_STALE);
  CHECK(p.record(token, p.second) == FEEDLANE_E_STALE);
  CHECK(p.slots_held() == 1);
  p.first().go_on();
  p.first().wait();
  CHECK(p.slots_held() == 0);
}

// promise: pinned-dropped-arrays
TEST_CASE("pinned: a recorded stream keeps the slot, whoever releases the last reference") {
  for (const char* by : {"release", "a deleter", "another stream", "another thread"}) {
    const std::string how = by;
    CAPTURE(how);
    Pinned p(4);
    const std::uint64_t token = p.take_token();
    REQUIRE(p.record(token, p.first()) == FEEDLANE_OK);
    p.first().hold();
    if (how == "another stream") {
      REQUIRE(feedlane_batch_release_on(p.l(), token, &p.second, nullptr) == FEEDLANE_OK);
      p.second.wait();
    } else if (how == "another thread") {
      REQUIRE(feedlane_batch_retain(p.l(), token) == FEEDLANE_OK);
      REQUIRE(feedlane_batch_release(p.l(), token) == FEEDLANE_OK);
      std::thread([&] { CHECK(feedlane_batch_release(p.l(), token) == FEEDLANE_OK); }).join();
    } else {
      DLManagedTensorVersioned* const tensor = how == "a deleter" ? export_tensor(p.l(), token) : nullptr;
      REQUIRE(feedlane_batch_release(p.l(), token) == FEEDLANE_OK);
      if (tensor != nullptr) tensor->deleter(tensor);
    }
    CHECK(feedlane_batch_retain(p.l(), token) == FEEDLANE_E_STALE);
    CHECK(p.slots_held() == 1);
    p.first().go_on();
    p.first().wait();
    CHECK(p.slots_held() == 0);
  }
}

TEST_CASE("pinned: a slot waits once for each recorded stream, and at most four streams can be recorded") {
  Pinned p(8);
  for (int round = 0; round < 3; round++) {  // a slot's later batches have none of them
    const std::uint64_t token = p.take_token();
    const std::array streams{&p.first(), &p.second, &p.third, &p.fourth};
    for (int twice = 0; twice < 2; twice++)
      for (ThreadDevice::Stream* s : streams) REQUIRE(p.record(token, *s) == FEEDLANE_OK);
    Error e;
    CHECK(feedlane_batch_record_stream(p.l(), token, &p.fifth, &e) == FEEDLANE_E_LIMIT);
    CHECK(std::string(e.argument) == "stream");
    CHECK(e.found == 5);
    CHECK(e.needed == FEEDLANE_MAX_RECORDED_STREAMS);
    for (ThreadDevice::Stream* s : streams) s->hold();
    REQUIRE(feedlane_batch_release(p.l(), token) == FEEDLANE_OK);
    for (ThreadDevice::Stream* s : streams) {
      CHECK(p.slots_held() == 1);
      s->go_on();
      s->wait();
    }
    CHECK(p.slots_held() == 0);
    const std::uint64_t plain = p.take_token();
    p.first().hold();
    REQUIRE(feedlane_batch_release(p.l(), plain) == FEEDLANE_OK);
    CHECK(p.slots_held() == 0);
    p.first().go_on();
  }
}

TEST_CASE("pinned: a backend that can't tell when a stream has passed a point refuses to record streams") {
  ThreadDevice device;
  feedlane_pool_config c = device.config();
  device.table.when_passed = nullptr;
  feedlane_pool* pool = nullptr;
  REQUIRE(feedlane_pool_create(&c, &pool, nullptr) == FEEDLANE_OK);
  {
    Setup s(4);
    s.config.pinned = pool;
    const Loader l = s.create();
    begin(l.get(), 0);
    auto b = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
    CHECK(feedlane_batch_record_stream(l.get(), b.token, &device.only_stream(), nullptr) == FEEDLANE_E_UNSUPPORTED);
    CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  }
  CHECK(feedlane_pool_destroy(&pool) == FEEDLANE_OK);
}

TEST_CASE("pinned: a tensor is copied to the device on a stream, and calls without a stream are refused") {
  Pinned p(4);
  auto b = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(p.l(), patience_ns, &b, nullptr) == FEEDLANE_OK);
  std::vector<std::byte> there(b.tensors[0].bytes);
  const auto copy = [&](void* stream) {
    return feedlane_pool_copy(p.pool, there.data(), b.tensors[0].data, there.size(), stream, nullptr);
  };
  CHECK(copy(FEEDLANE_NO_STREAM) == FEEDLANE_E_ARGUMENT);
  CHECK(feedlane_batch_record_stream(p.l(), b.token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_E_ARGUMENT);
  CHECK(feedlane_batch_release_on(p.l(), b.token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_E_ARGUMENT);
  CHECK(copy(&p.first()) == FEEDLANE_OK);
  p.first().wait();
  CHECK(std::memcmp(there.data(), b.tensors[0].data, there.size()) == 0);
  CHECK(feedlane_batch_release(p.l(), b.token) == FEEDLANE_OK);
}

TEST_CASE("pinned: a recorded stream that no longer exists when it is queried delays nothing and is reported") {
  Pinned p(4);
  const std::uint64_t token = p.take_token();
  REQUIRE(feedlane_batch_record_stream(p.l(), token, nullptr, nullptr) == FEEDLANE_OK);  // the table refuses it later
  REQUIRE(p.record(token, p.first()) == FEEDLANE_OK);
  p.first().hold();
  REQUIRE(feedlane_batch_release(p.l(), token) == FEEDLANE_OK);
  CHECK(p.slots_held() == 1);
  p.first().go_on();
  p.first().wait();
  CHECK(p.slots_held() == 0);
  auto event = fresh<feedlane_event>();
  REQUIRE(feedlane_loader_event(p.l(), &event) == FEEDLANE_OK);
  CHECK(event.kind == FEEDLANE_EVENT_DEVICE_FAILED);
  CHECK(std::string(event.what.text).find("no such stream") != std::string::npos);
  CHECK(feedlane_loader_event(p.l(), &event) == FEEDLANE_END);
}

// promise: pinned-dropped-arrays
TEST_CASE("pinned: every copy is whole and no slot stays held if exported tensors are dropped while they are copied") {
  constexpr std::int64_t samples = 300;
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Pinned p(samples, workers);
    std::vector<std::int64_t> there(samples, -1);
    for (std::int64_t i = 0; i < samples; i++) {
      const std::uint64_t token = p.take_token();
      DLManagedTensorVersioned* const tensor = export_tensor(p.l(), token);
      REQUIRE(p.record(token, p.first()) == FEEDLANE_OK);
      REQUIRE(feedlane_batch_release(p.l(), token) == FEEDLANE_OK);
      // Whoever has the tensor copies by means of its own.
      const void* const from = tensor->dl_tensor.data;
      p.first().enqueue([from, to = &there[static_cast<std::size_t>(i)]](bool) {
        std::this_thread::yield();
        std::memcpy(to, from, sizeof *to);
      });
      tensor->deleter(tensor);
    }
    p.first().wait();
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < samples; i++) wrong += there[static_cast<std::size_t>(i)] != i;
    CHECK(wrong == 0);
    CHECK(p.slots_held() == 0);
  }
}

TEST_CASE("pinned: a loader destroyed before its recorded streams are done lives until they are") {
  ThreadDevice device;
  const feedlane_pool_config c = device.config();
  feedlane_pool* pool = nullptr;
  REQUIRE(feedlane_pool_create(&c, &pool, nullptr) == FEEDLANE_OK);
  Setup s(8);
  s.config.pinned = pool;
  feedlane_loader* l = s.create().release();
  begin(l, 0);
  auto b = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK);
  DLManagedTensorVersioned* const tensor = export_tensor(l, b.token);
  REQUIRE(feedlane_batch_record_stream(l, b.token, device.stream(), nullptr) == FEEDLANE_OK);
  REQUIRE(feedlane_batch_release(l, b.token) == FEEDLANE_OK);
  CHECK(feedlane_loader_destroy(&l) == FEEDLANE_OK);
  device.only_stream().hold();
  tensor->deleter(tensor);
  CHECK(mappings_of("feedlane-data") == 1);
  device.only_stream().go_on();
  device.only_stream().wait();
  CHECK(feedlane_pool_destroy(&pool) == FEEDLANE_OK);
  CHECK(mappings_of("feedlane-") == 0);
  CHECK(device.registered().empty());
}

TEST_CASE("pinned: if threads record streams and release batches concurrently, every slot comes back exactly once") {
  Pinned p(400, 1);
  const std::array streams{&p.first(), &p.second, &p.third};
  std::atomic<int> wrong{0};
  for (int batch = 0; batch < 400; batch++) {
    const std::uint64_t token = p.take_token();
    std::vector<std::thread> team;
    for (std::size_t t = 0; t < streams.size(); t++) {
      REQUIRE(feedlane_batch_retain(p.l(), token) == FEEDLANE_OK);
      team.emplace_back([&, t] {
        wrong += p.record(token, *streams[t]) != FEEDLANE_OK;
        if (t == 0) wrong += feedlane_batch_release_on(p.l(), token, streams[1], nullptr) != FEEDLANE_OK;
        else wrong += feedlane_batch_release(p.l(), token) != FEEDLANE_OK;
      });
    }
    wrong += feedlane_batch_release(p.l(), token) != FEEDLANE_OK;
    for (std::thread& t : team) t.join();
  }
  for (ThreadDevice::Stream* s : streams) s->wait();
  CHECK(wrong == 0);
  CHECK(p.slots_held() == 0);
}

namespace {

// A stream of which the test says to the microsecond when it has passed.
struct Timed {
  Timed() : table(fresh<feedlane_backend>()), thread([this] { run(); }) {
    table.user_data = this;
    table.register_memory = table.unregister_memory = [](void*, void*, std::uint64_t, feedlane_error*) { return 0; };
    table.when_passed = [](void* self, void*, feedlane_notify_fn n, void* c, feedlane_error*) {
      static_cast<Timed*>(self)->notify = n;
      static_cast<Timed*>(self)->cookie = c;
      return 0;
    };
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() {
    due = over;
    thread.join();
  }
  static std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
  void run() {
    for (;;) {
      while (due == none) std::this_thread::yield();
      const std::int64_t at = due;
      if (at == over) return;
      while (now() < at) {
      }
      notify(cookie, FEEDLANE_OK);
      due = none;
    }
  }
  void pass_in(std::int64_t ns) { due = now() + ns; }
  void wait() const {
    while (due != none) std::this_thread::yield();
  }

  static constexpr std::int64_t none = -1, over = -2;
  feedlane_backend table;
  feedlane_notify_fn notify = nullptr;
  void* cookie = nullptr;
  std::atomic<std::int64_t> due{none};
  std::thread thread;
};

}  // namespace

// While it looks before it sleeps, or just before that: between `next` having seen the use and its being ready to be woken.
TEST_CASE("pinned: if a stream's use ends while next is about to sleep, next returns SLOTS_HELD and does not sleep") {
  for (const std::uint32_t staged : {0U, 2U}) {
    CAPTURE(staged);
    Timed stream;
    auto c = fresh<feedlane_pool_config>();
    c.custom = &stream.table;
    c.buffers = staged;
    c.buffer_bytes = staged == 0 ? 0 : 4096;
    feedlane_pool* pool = nullptr;
    REQUIRE(feedlane_pool_create(&c, &pool, nullptr) == FEEDLANE_OK);
    Setup s(64);
    s.workers(1).config.prefetch_factor = 1;
    s.config.pinned = pool;
    s.config.staged = static_cast<std::int32_t>(staged);
    Loader l = s.create();
    std::thread stager;
    if (staged != 0) stager = std::thread([&] { CHECK(feedlane_loader_run_stager(l.get(), nullptr) == FEEDLANE_OK); });
    begin(l.get(), 0);
    std::vector<std::uint64_t> held;
    auto b = fresh<feedlane_batch>();
    while (feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK) held.push_back(b.token);
    int lost = 0;
    for (int i = 0; i < 3000 && lost == 0; i++) {
      REQUIRE(feedlane_batch_retain(l.get(), held[0]) == FEEDLANE_OK);
      REQUIRE(feedlane_batch_release_on(l.get(), held[0], nullptr, nullptr) == FEEDLANE_OK);
      stream.pass_in(i * 997 % 60'000);
      lost += feedlane_loader_next(l.get(), 2'000'000'000, &b, nullptr) != FEEDLANE_SLOTS_HELD;
      stream.wait();
    }
    CHECK(lost == 0);
    CHECK(feedlane_loader_close(l.get()) == FEEDLANE_OK);
    if (stager.joinable()) stager.join();
    for (const std::uint64_t token : held) CHECK(feedlane_batch_release(l.get(), token) == FEEDLANE_OK);
    l.reset();
    CHECK(feedlane_pool_destroy(&pool) == FEEDLANE_OK);
  }
}
