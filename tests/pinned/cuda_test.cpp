// SPDX-License-Identifier: Apache-2.0
// What registered memory promises on a GPU alone.
#include <string>

#include "cuda_device.hpp"
#include "semantics/sharing.hpp"
#include "support/trainer.hpp"
#include "tensors/dlpack_abi.hpp"

using namespace feedlane::test;

TEST_CASE("pinned: DLPack exports a registered batch as kDLCUDAHost on request") {
  CudaDevice device;
  feedlane_pool_config c = device.config();
  feedlane_pool* p = nullptr;
  REQUIRE(feedlane_pool_create(&c, &p, nullptr) == FEEDLANE_OK);
  {
    Setup s(4);
    s.config.pinned = p;
    const Loader l = s.create();
    begin(l.get(), 0);
    auto b = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
    void* out = nullptr;
    REQUIRE(feedlane_batch_dlpack(l.get(), b.token, 0, FEEDLANE_DLPACK_PINNED, &out, nullptr) == FEEDLANE_OK);
    auto* const t = static_cast<DLManagedTensorVersioned*>(out);
    CHECK(t->dl_tensor.device.device_type == 3);
    t->deleter(t);
    CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  }
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}

// promise: consumer-pinned
TEST_CASE("pinned: a consumer's batches, which it can only read, are copied to the device from registered memory") {
  CudaDevice device;
  feedlane_pool_config c = device.config();
  feedlane_pool* p = nullptr;
  REQUIRE(feedlane_pool_create(&c, &p, nullptr) == FEEDLANE_OK);
  {
    Setup s(20, 2);
    s.workers(1);
    const Loader feeder = sharing::shared(s, FEEDLANE_SHARE_EVERY, 1).create();
    auto config = fresh<feedlane_consumer_config>();
    config.pinned = p;
    feedlane_loader* joined = nullptr;
    Error e;
    const std::int32_t status =
        feedlane_loader_join(sharing::Place(feeder.get()).release(), nullptr, &config, patience_ns, &joined, &e);
    REQUIRE_MESSAGE(status == FEEDLANE_OK, std::string(e.text));
    const Loader consumer(joined);
    begin(feeder.get(), 0);
    begin(consumer.get(), 0);
    for (std::int64_t batch = 0; batch < 10; batch++) {
      const feedlane_batch b = sharing::polled_batch(feeder.get(), consumer.get());
      const feedlane_tensor& t = b.tensors[0];
      void* const memory = device.allocate(t.bytes);
      CHECK(feedlane_pool_copy(p, memory, t.data, t.bytes, device.stream(), nullptr) == FEEDLANE_OK);
      const std::string bytes(static_cast<const char*>(t.data), t.bytes);
      REQUIRE(feedlane_batch_release_on(consumer.get(), b.token, device.stream(), nullptr) == FEEDLANE_OK);
      device.wait(device.stream());
      CHECK(device.read(memory, bytes.size()) == bytes);
      device.free(memory);
    }
  }
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}
