// SPDX-License-Identifier: Apache-2.0
// The driver, loaded by name, and its objects with destructors.
#include "cuda.hpp"

#include <dlfcn.h>
#include <fmt/core.h>

#include "measure.hpp"

namespace bench::cuda {

namespace {

constexpr const char* library_name = "libcuda.so.1";

Driver driver;
Context context = nullptr;

std::string name_of(Result result) {
  const char* name = nullptr;
  if (driver.error_name != nullptr) (void)driver.error_name(result, &name);
  return name != nullptr ? name : fmt::format("error {}", result);
}

std::string load() {
  void* library = ::dlopen(library_name, RTLD_NOW | RTLD_LOCAL);  // never unloaded: it has threads of its own
  if (library == nullptr) return fmt::format("no CUDA driver ({})", ::dlerror());
#define BENCH_CUDA_LOAD(member, symbol, arguments)                                     \
  driver.member = reinterpret_cast<decltype(driver.member)>(::dlsym(library, symbol)); \
  if (driver.member == nullptr) return fmt::format("{} has no {}: the driver is too old", library_name, symbol);
  BENCH_CUDA_FUNCTIONS(BENCH_CUDA_LOAD)
#undef BENCH_CUDA_LOAD
  int count = 0;
  Result r = driver.init(0);
  if (r == 0) r = driver.device_count(&count);
  if (r != 0) return fmt::format("no CUDA device ({})", name_of(r));
  return count == 0 ? "no CUDA device" : "";
}

}  // namespace

const std::string& missing() {
  static const std::string why = load();
  return why;
}

const Driver& use() {
  if (!missing().empty()) fail(missing());
  if (context == nullptr) check("cuDevicePrimaryCtxRetain", driver.context_retain(&context, 0));
  check("cuCtxSetCurrent", driver.set_current(context));
  return driver;
}

std::string device_name() {
  char name[256] = {};
  check("cuDeviceGetName", use().device_name(name, sizeof name, 0));
  return name;
}

std::string driver_version() {
  int version = 0;
  check("cuDriverGetVersion", use().driver_version(&version));
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

void check(const char* what, Result result) {
  if (result != 0) fail(fmt::format("{}: {}", what, name_of(result)));
}

Memory::Memory(std::uint64_t bytes) { check("cuMemAlloc", driver.allocate(&memory_, bytes)); }
Memory::~Memory() { check("cuMemFree", driver.free(memory_)); }

HostMemory::HostMemory(std::uint64_t bytes) { check("cuMemAllocHost", driver.allocate_host(&memory_, bytes)); }
HostMemory::~HostMemory() { check("cuMemFreeHost", driver.free_host(memory_)); }

OwnStream::OwnStream() { check("cuStreamCreate", driver.stream_create(&stream_, non_blocking)); }
OwnStream::~OwnStream() { check("cuStreamDestroy", driver.stream_destroy(stream_)); }
void OwnStream::wait() const { check("cuStreamSynchronize", driver.stream_wait(stream_)); }
void OwnStream::wait_for(Event event) const { check("cuStreamWaitEvent", driver.stream_wait_event(stream_, event, 0)); }

OwnEvent::OwnEvent() { check("cuEventCreate", driver.event_create(&event_, without_timing)); }
OwnEvent::~OwnEvent() { check("cuEventDestroy", driver.event_destroy(event_)); }
void OwnEvent::record(const OwnStream& stream) const {
  check("cuEventRecord", driver.event_record(event_, stream.get()));
}

}  // namespace bench::cuda
