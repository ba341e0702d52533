// SPDX-License-Identifier: Apache-2.0
// The driver's functions for tests. Where there is no device the program says so and is skipped.
#include "cuda_device.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>

#include "devices.hpp"

namespace feedlane::test {

namespace {

pinned::cuda::Context context = nullptr;
char device_name[128] = {};

template <class F>
bool find(void* library, const char* symbol, F& out) {
  out = reinterpret_cast<F>(::dlsym(library, symbol));
  return out != nullptr;
}

bool load(Api& api) {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return false;
#define FEEDLANE_TEST_CUDA_FIND(member, symbol, arguments) \
  if (!find(library, symbol, api.member)) return false;
  FEEDLANE_TEST_CUDA_FUNCTIONS(FEEDLANE_TEST_CUDA_FIND)
#undef FEEDLANE_TEST_CUDA_FIND
  return api.init(0) == 0 && api.retain(&context, 0) == 0 && api.set_current(context) == 0 &&
         api.name(device_name, sizeof device_name, 0) == 0;
}

}  // namespace

const Api& api() {
  static const Api loaded = [] {
    Api a;
    if (!load(a)) {
      (void)std::fprintf(stderr, "no CUDA device here: skipped\n");
      ::_exit(77);
    }
    (void)std::printf("device: %s\n", device_name);
    return a;
  }();
  return loaded;
}

namespace {

// Before any case runs: meson knows 77 as skipped.
[[maybe_unused]] const Api& at_start = api();

}  // namespace

void use_device() { REQUIRE(api().set_current(context) == 0); }

bool is_stand_in() { return std::string(device_name).starts_with("stand-in"); }

Stream CudaDevice::make_stream() {
  constexpr unsigned non_blocking = 1;
  Stream stream = nullptr;
  REQUIRE(api().stream_create(&stream, non_blocking) == 0);
  return stream;
}

feedlane_pool_config CudaDevice::config() {
  auto c = fresh<feedlane_pool_config>();
  c.backend = "cuda";
  return c;
}

void* CudaDevice::allocate(std::uint64_t bytes) {
  DevicePointer memory = 0;
  REQUIRE(api().allocate(&memory, bytes) == 0);
  return reinterpret_cast<void*>(memory);
}

std::string CudaDevice::read(const void* memory, std::uint64_t bytes) {
  std::string out(bytes, '\0');
  REQUIRE(api().read(out.data(), reinterpret_cast<DevicePointer>(memory), bytes) == 0);
  return out;
}

std::vector<std::pair<std::string, std::function<std::unique_ptr<Device>()>>> devices() {
  return {{"cuda", [] { return std::make_unique<CudaDevice>(); }}};
}

}  // namespace feedlane::test
