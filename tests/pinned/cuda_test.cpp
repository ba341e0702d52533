// SPDX-License-Identifier: Apache-2.0
// What registered memory promises on a GPU alone.
#include "cuda_device.hpp"
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
