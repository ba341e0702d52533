// SPDX-License-Identifier: Apache-2.0
// Registered memory while a stream is captured into a graph in global mode.
//
// What CUDA's documentation says (Driver API 13.0):
//  - While a thread captures with CU_STREAM_CAPTURE_MODE_GLOBAL, no thread may make "potentially unsafe API calls"
//    (cuThreadExchangeStreamCaptureMode). Its one example is cudaMalloc: work that is not enqueued on a stream, so that the
//    capture would not see it. There is no list of them. Registrations and allocations of host memory must be taken for such.
//  - A call that is refused invalidates the capture: cuStreamEndCapture returns no graph (CUDA Programming Guide, on
//    prohibited and unhandled operations).
//  - cuStreamAddCallback "is not supported with cuStreamBeginCapture and cuStreamEndCapture". So feedlane_batch_release_on and
//    recorded streams can't use a stream that is captured. Whether it may be called for another stream meanwhile isn't said.
//
// What is promised: feedlane_loader_next, _poll, feedlane_batch_release without recorded streams and all that workers do call
// nothing of CUDA, unless a worker has ended unexpectedly, whose slots are registered again. feedlane_pool_copy is one
// cuMemcpyHtoDAsync. Loaders and pools register when they are made and unregister when they end: not during a capture.
#include <atomic>
#include <cstring>
#include <thread>

#include "cuda_device.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr int mode_global = 0;
constexpr int status_active = 1;

// A registered loader with two workers and a batch in hand, a stream that can be captured and one that isn't.
struct Captured {
  explicit Captured(std::int64_t samples) : setup(samples) {
    const feedlane_pool_config c = device.config();
    REQUIRE(feedlane_pool_create(&c, &pool, nullptr) == FEEDLANE_OK);
    setup.workers(2);
    setup.config.pinned = pool;
    setup.config.held = 4;
    loader = setup.create();
    begin(l(), 0);
    batch = take_batch();
    there = device.allocate(4096);
    elsewhere = device.allocate(4096);
    // Such a worker may be starting still: all that is to come are tasks.
    wait_until_ready(l(), 2);
    REQUIRE(api().capture_begin(stream, mode_global) == 0);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  ~Captured() {
    if (batch.token != 0) CHECK(feedlane_batch_release(l(), batch.token) == FEEDLANE_OK);
    loader.reset();
    CHECK(feedlane_pool_destroy(&pool) == FEEDLANE_OK);
    device.free(there);
    device.free(elsewhere);
    CHECK(api().stream_destroy(stream) == 0);
  }
  [[nodiscard]] feedlane_loader* l() const { return loader.get(); }
  [[nodiscard]] feedlane_batch take_batch() const {
    auto b = fresh<feedlane_batch>();
    std::int32_t s = FEEDLANE_INTERRUPTED;
    while (s == FEEDLANE_INTERRUPTED) s = feedlane_loader_next(l(), patience_ns, &b, nullptr);
    REQUIRE(s == FEEDLANE_OK);
    return b;
  }
  std::int32_t copy(const feedlane_batch& b, void* to, void* on, feedlane_error* err = nullptr) const {
    return feedlane_pool_copy(pool, to, b.tensors[0].data, b.tensors[0].bytes, on, err);
  }
  // NULL: the capture was invalidated.
  [[nodiscard]] Graph end_capture() const {
    Graph graph = nullptr;
    const Result r = api().capture_end(stream, &graph);
    CHECK((r == 0) == (graph != nullptr));
    return graph;
  }
  [[nodiscard]] std::int64_t value(const void* memory) {
    std::int64_t v = -1;
    std::memcpy(&v, device.read(memory, sizeof v).data(), sizeof v);
    return v;
  }
  // Replays the graph over memory that was overwritten, twice: each time the batch's bytes are there.
  void check_replays(Graph graph, std::int64_t expected) {
    Executable executable = nullptr;
    REQUIRE(api().instantiate(&executable, graph, 0) == 0);
    for (int i = 0; i < 2; i++) {
      REQUIRE(api().fill(reinterpret_cast<DevicePointer>(there), 0xffffffff, 1024, stream) == 0);
      REQUIRE(api().launch(executable, stream) == 0);
      device.wait(stream);
      CHECK(value(there) == expected);
    }
    CHECK(api().executable_destroy(executable) == 0);
    CHECK(api().graph_destroy(graph) == 0);
  }

  CudaDevice device;  // its stream isn't captured
  Stream stream = CudaDevice::make_stream();
  feedlane_pool* pool = nullptr;
  Setup setup;
  Loader loader;
  feedlane_batch batch{};
  void* there = nullptr;
  void* elsewhere = nullptr;
};

}  // namespace

// promise: pinned-graph-capture
TEST_CASE(
    "pinned: an epoch in the capturing thread keeps a global capture valid, and the graph copies the held batch") {
  Captured c(200);
  REQUIRE(c.copy(c.batch, c.there, c.stream) == FEEDLANE_OK);
  for (std::int64_t i = 1; i < 200; i++) {
    const feedlane_batch b = c.take_batch();
    std::int64_t index = -1;
    std::memcpy(&index, b.tensors[0].data, sizeof index);
    CHECK(index == i);
    CHECK(feedlane_loader_poll(c.l(), nullptr) >= FEEDLANE_OK);
    CHECK(feedlane_batch_release(c.l(), b.token) == FEEDLANE_OK);
  }
  auto none = fresh<feedlane_batch>();
  CHECK(feedlane_loader_next(c.l(), patience_ns, &none, nullptr) == FEEDLANE_END);
  int status = 0;
  CHECK(api().capture_status(c.stream, &status) == 0);
  CHECK(status == status_active);
  const Graph graph = c.end_capture();
  REQUIRE(graph != nullptr);
  c.check_replays(graph, 0);
}

// promise: pinned-graph-capture
TEST_CASE("pinned: while one thread captures, another takes batches, copies on another stream and releases") {
  Captured c(100);
  std::atomic<int> wrong{0};
  std::atomic<std::int64_t> last{0};
  feedlane_batch copied{};
  std::thread other([&] {
    use_device();
    for (std::int64_t i = 1; i < 100; i++) {
      auto b = fresh<feedlane_batch>();
      std::int32_t s = FEEDLANE_INTERRUPTED;
      while (s == FEEDLANE_INTERRUPTED) s = feedlane_loader_next(c.l(), patience_ns, &b, nullptr);
      if (s != FEEDLANE_OK) {
        wrong++;
        return;
      }
      std::int64_t index = -1;
      std::memcpy(&index, b.tensors[0].data, sizeof index);
      wrong += index != i;
      if (i == 50) {  // is kept until the copy is done: nobody may ask a stream meanwhile
        wrong += c.copy(b, c.elsewhere, c.device.stream()) != FEEDLANE_OK;
        copied = b;
      } else {
        wrong += feedlane_batch_release(c.l(), b.token) != FEEDLANE_OK;
      }
      last = i;
    }
  });
  for (int i = 0; i < 100; i++) wrong += c.copy(c.batch, c.there, c.stream) != FEEDLANE_OK;
  other.join();
  CHECK(wrong == 0);
  CHECK(last == 99);
  const Graph graph = c.end_capture();
  REQUIRE(graph != nullptr);
  c.device.wait(c.device.stream());
  CHECK(c.value(c.elsewhere) == 50);
  CHECK(feedlane_batch_release(c.l(), copied.token) == FEEDLANE_OK);
  c.check_replays(graph, 0);
}

// The documentation doesn't say whether a callback may be added to a stream while another one is captured. Either the call
// succeeds and the capture is valid, or it is refused and the caller has its reference still. Which one, the output says.
TEST_CASE("pinned: a release on another stream during a capture either succeeds or is refused and changes nothing") {
  Captured c(40);
  REQUIRE(c.copy(c.batch, c.there, c.stream) == FEEDLANE_OK);
  const feedlane_batch b = c.take_batch();
  REQUIRE(c.copy(b, c.elsewhere, c.device.stream()) == FEEDLANE_OK);
  Error e;
  const std::int32_t released = feedlane_batch_release_on(c.l(), b.token, c.device.stream(), &e);
  const Graph graph = c.end_capture();
  MESSAGE("a release on another stream during a global capture: ",
          std::string(released == FEEDLANE_OK ? "succeeds" : e.text), ", and the capture is ",
          std::string(graph != nullptr ? "valid" : "invalid"));
  c.device.wait(c.device.stream());
  CHECK(c.value(c.elsewhere) == 1);
  if (released == FEEDLANE_OK) {
    CHECK(feedlane_batch_release(c.l(), b.token) == FEEDLANE_E_STALE);
    REQUIRE(graph != nullptr);
  } else {
    CHECK(released == FEEDLANE_E_DEVICE);
    CHECK(feedlane_batch_release(c.l(), b.token) == FEEDLANE_OK);
  }
  if (graph != nullptr) c.check_replays(graph, 0);
}

TEST_CASE("pinned: a release on the captured stream is refused, and the batch is still held") {
  Captured c(40);
  REQUIRE(c.copy(c.batch, c.there, c.stream) == FEEDLANE_OK);
  Error e;
  CHECK(feedlane_batch_release_on(c.l(), c.batch.token, c.stream, &e) == FEEDLANE_E_DEVICE);
  CHECK(e.says("cuStreamAddCallback"));
  const Graph graph = c.end_capture();
  if (is_stand_in()) CHECK(graph == nullptr);
  if (graph != nullptr) CHECK(api().graph_destroy(graph) == 0);
  std::int64_t index = -1;
  std::memcpy(&index, c.batch.tensors[0].data, sizeof index);
  CHECK(index == 0);
  // The stream is good for releases again.
  CHECK(feedlane_batch_release_on(c.l(), c.batch.token, c.stream, nullptr) == FEEDLANE_OK);
  c.batch.token = 0;
  c.device.wait(c.stream);
  CHECK(stats_of(c.l()).slots_held == 0);
}

// Why loaders and pools are made before a capture. The driver's answer is said, and checked with the stand-in alone.
TEST_CASE("pinned: registering memory during a global capture may invalidate the capture") {
  Captured c(4);
  std::vector<std::byte> memory(1 << 16);
  Error e;
  const std::int32_t registered = feedlane_pool_register(c.pool, memory.data(), memory.size(), &e);
  const Graph graph = c.end_capture();
  MESSAGE("a registration during a global capture: ", std::string(registered == FEEDLANE_OK ? "succeeds" : e.text),
          ", and the capture is ", std::string(graph != nullptr ? "valid" : "invalid"));
  if (is_stand_in()) {
    CHECK(registered == FEEDLANE_E_DEVICE);
    CHECK(graph == nullptr);
  }
  if (registered == FEEDLANE_OK) CHECK(feedlane_pool_unregister(c.pool, memory.data(), nullptr) == FEEDLANE_OK);
  if (graph != nullptr) CHECK(api().graph_destroy(graph) == 0);
}
