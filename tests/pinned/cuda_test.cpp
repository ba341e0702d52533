// SPDX-License-Identifier: Apache-2.0
// The contract of registered memory on a GPU. Where there is none the program says so and is skipped.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>

#include "arena/dlpack_abi.hpp"
#include "devices.hpp"
#include "pinned/cuda.hpp"
#include "support/trainer.hpp"

namespace feedlane::test {
namespace {

using pinned::cuda::DevicePointer;
using pinned::cuda::Result;
using pinned::cuda::Stream;

// What a trainer has from its framework: memory, streams, and a way back.
struct Api {
  Result (*init)(unsigned) = nullptr;
  Result (*retain)(pinned::cuda::Context*, int) = nullptr;
  Result (*set_current)(pinned::cuda::Context) = nullptr;
  Result (*allocate)(DevicePointer*, std::size_t) = nullptr;
  Result (*free)(DevicePointer) = nullptr;
  Result (*stream_create)(Stream*, unsigned) = nullptr;
  Result (*stream_destroy)(Stream) = nullptr;
  Result (*stream_wait)(Stream) = nullptr;
  Result (*read)(void*, DevicePointer, std::size_t) = nullptr;
  Result (*name)(char*, int, int) = nullptr;
};

template <class F>
bool find(void* library, const char* symbol, F& out) {
  out = reinterpret_cast<F>(::dlsym(library, symbol));
  return out != nullptr;
}

bool load(Api& api) {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
  return library != nullptr && find(library, "cuInit", api.init) &&
         find(library, "cuDevicePrimaryCtxRetain", api.retain) && find(library, "cuCtxSetCurrent", api.set_current) &&
         find(library, "cuMemAlloc_v2", api.allocate) && find(library, "cuMemFree_v2", api.free) &&
         find(library, "cuStreamCreate", api.stream_create) &&
         find(library, "cuStreamDestroy_v2", api.stream_destroy) &&
         find(library, "cuStreamSynchronize", api.stream_wait) && find(library, "cuMemcpyDtoH_v2", api.read) &&
         find(library, "cuDeviceGetName", api.name) && api.init(0) == 0;
}

const Api& api() {
  static const Api loaded = [] {
    Api a;
    pinned::cuda::Context context = nullptr;
    char name[128] = {};
    if (!load(a) || a.retain(&context, 0) != 0 || a.set_current(context) != 0 || a.name(name, sizeof name, 0) != 0) {
      (void)std::fprintf(stderr, "no CUDA device here: skipped\n");
      ::_exit(77);
    }
    (void)std::printf("device: %s\n", name);
    return a;
  }();
  return loaded;
}

// Before any case runs: meson knows 77 as skipped.
[[maybe_unused]] const Api& at_start = api();

class CudaDevice final : public Device {
 public:
  CudaDevice() { REQUIRE(api().stream_create(&stream_, 1) == 0); }
  ~CudaDevice() override { CHECK(api().stream_destroy(stream_) == 0); }
  feedlane_pool_config config() override {
    auto c = fresh<feedlane_pool_config>();
    c.backend = "cuda";
    return c;
  }
  void* allocate(std::uint64_t bytes) override {
    DevicePointer memory = 0;
    REQUIRE(api().allocate(&memory, bytes) == 0);
    return reinterpret_cast<void*>(memory);
  }
  void free(void* memory) override { CHECK(api().free(reinterpret_cast<DevicePointer>(memory)) == 0); }
  void* stream() override { return stream_; }
  void wait(void* stream) override { REQUIRE(api().stream_wait(static_cast<Stream>(stream)) == 0); }
  std::string read(const void* memory, std::uint64_t bytes) override {
    std::string out(bytes, '\0');
    REQUIRE(api().read(out.data(), reinterpret_cast<DevicePointer>(memory), bytes) == 0);
    return out;
  }

 private:
  Stream stream_ = nullptr;
};

}  // namespace

std::vector<std::pair<std::string, std::function<std::unique_ptr<Device>()>>> devices() {
  return {{"cuda", [] { return std::make_unique<CudaDevice>(); }}};
}

}  // namespace feedlane::test

using namespace feedlane::test;

TEST_CASE("pinned: a registered batch is CUDAHost to DLPack, when that is asked for") {
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
    DLManagedTensorVersioned* t = nullptr;
    REQUIRE(feedlane_batch_dlpack(l.get(), b.token, 0, FEEDLANE_DLPACK_CUDA_HOST, &t, nullptr) == FEEDLANE_OK);
    CHECK(t->dl_tensor.device.device_type == 3);
    t->deleter(t);
    CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  }
  CHECK(feedlane_pool_destroy(&p) == FEEDLANE_OK);
}
