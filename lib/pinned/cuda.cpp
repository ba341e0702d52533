// SPDX-License-Identifier: Apache-2.0
// The CUDA backend.
#include "pinned/cuda.hpp"

#include <dlfcn.h>

#include "pinned/backend.hpp"

namespace feedlane::pinned {
namespace {

using namespace cuda;

constexpr const char* library_name = "libcuda.so.1";

Status load(Driver& driver, Error& error) {
  // Never unloaded, because the driver has its own threads.
  void* library = ::dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return error.fail(FEEDLANE_E_UNSUPPORTED, "cannot load the CUDA driver: {}", ::dlerror());
#define FEEDLANE_CUDA_LOAD(member, symbol, result, arguments)                          \
  driver.member = reinterpret_cast<decltype(driver.member)>(::dlsym(library, symbol)); \
  if (driver.member == nullptr)                                                        \
    return error.fail(FEEDLANE_E_UNSUPPORTED, "{} has no {}: the driver is too old", library_name, symbol);
  FEEDLANE_CUDA_FUNCTIONS(FEEDLANE_CUDA_LOAD)
#undef FEEDLANE_CUDA_LOAD
  return FEEDLANE_OK;
}

void call_notify(Stream, Result status, void* passed) {
  const auto& [notify, cookie] = *static_cast<const Passed*>(passed);
  notify(cookie, status == 0 ? FEEDLANE_OK : FEEDLANE_E_DEVICE);
}

class Cuda final : public Backend {
 public:
  ~Cuda() override {
    if (context_ != nullptr) (void)driver_.context_release(device_);
  }

  Status open(std::int32_t ordinal, Error& error) {
    if (const Status s = load(driver_, error); s != FEEDLANE_OK) return s;
    if (const Result r = driver_.init(0); r != 0) return fail(r, "cuInit", error);
    int count = 0;
    if (const Result r = driver_.device_count(&count); r != 0) return fail(r, "cuDeviceGetCount", error);
    if (ordinal >= count)
      return error.refuse(FEEDLANE_E_ARGUMENT, "config.device", ordinal, count,
                          "config.device is {}, but the CUDA driver reports {} devices", ordinal, count);
    if (const Result r = driver_.device_get(&device_, ordinal); r != 0) return fail(r, "cuDeviceGet", error);
    const Result r = driver_.context_retain(&context_, device_);
    return r == 0 ? FEEDLANE_OK : fail(r, "cuDevicePrimaryCtxRetain", error);
  }

  Status register_memory(void* address, std::uint64_t bytes, Access access, Error& error) override {
    const unsigned flags = host_register_portable | (access == Access::read_only ? host_register_read_only : 0U);
    return call("cuMemHostRegister", error, [&] { return driver_.host_register(address, bytes, flags); });
  }
  Status unregister_memory(void* address, std::uint64_t, Error& error) override {
    return call("cuMemHostUnregister", error, [&] { return driver_.host_unregister(address); });
  }
  Status copy(void* device_memory, const void* host, std::uint64_t bytes, void* stream, Error& error) override {
    return call("cuMemcpyHtoDAsync", error, [&] {
      return driver_.copy_to_device(reinterpret_cast<DevicePointer>(device_memory), host, bytes,
                                    static_cast<Stream>(stream));
    });
  }
  // Not cuLaunchHostFunc: its function isn't called after the device has failed, so waiting for it would never end.
  Status when_passed(void* stream, const Passed& passed, Error& error) override {
    return call("cuStreamAddCallback", error, [&] {
      return driver_.add_callback(static_cast<Stream>(stream), call_notify, const_cast<Passed*>(&passed), 0);
    });
  }
  [[nodiscard]] std::int32_t dlpack_device() const override { return 3; }  // kDLCUDAHost

 private:
  // Calls `f` in the device's primary context, whatever the thread's current context is.
  template <class F>
  Status call(const char* what, Error& error, F&& f) {
    if (const Result r = driver_.context_push(context_); r != 0) return fail(r, "cuCtxPushCurrent", error);
    const Result result = f();
    Context popped = nullptr;
    (void)driver_.context_pop(&popped);
    return result == 0 ? FEEDLANE_OK : fail(result, what, error);
  }

  Status fail(Result result, const char* what, Error& error) const {
    const char* name = nullptr;
    const char* text = nullptr;
    (void)driver_.error_name(result, &name);
    (void)driver_.error_string(result, &text);
    (void)error.fail(result == not_supported ? FEEDLANE_E_UNSUPPORTED : FEEDLANE_E_DEVICE, "{}: {} ({})", what,
                     name != nullptr ? name : "an unknown error", text != nullptr ? text : "no text");
    error.found = result;
    return error.code;
  }

  Driver driver_;
  Device device_ = 0;
  Context context_ = nullptr;
};

}  // namespace

Status make_cuda(std::int32_t device, std::unique_ptr<Backend>& out, Error& error) {
  if (device < 0) return refuse(error, "config.device", device, 0, "must not be negative");
  auto backend = std::make_unique<Cuda>();
  if (const Status s = backend->open(device, error); s != FEEDLANE_OK) return s;
  out = std::move(backend);
  return FEEDLANE_OK;
}

}  // namespace feedlane::pinned
