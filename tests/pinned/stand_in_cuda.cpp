// SPDX-License-Identifier: Apache-2.0
// A stand-in for CUDA's driver, so that what needs a GPU can be tried where there is none: libcuda.so.1, which LD_LIBRARY_PATH
// leads to. Device memory is memory, a stream is a thread, a graph replays the copies that were captured. It is stricter than
// the driver where that catches mistakes: without a current context, in a callback, and while any thread captures in global
// mode, calls fail that might fail there. FEEDLANE_STAND_IN_DEVICES=0 in the environment: there is no device.
#include "stand_in_cuda.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string>

using namespace feedlane::test::stand_in;

namespace {

struct Driver {
  Stretches registered, allocated;
  Stream null_stream;
  std::mutex mutex;  // of the following
  std::set<Stream*> capturing;
};

// Never destroyed: the program's own threads may still be here at exit.
Driver& driver() {
  static Driver* const all = new Driver;
  return *all;
}

int context_object = 0;
void* const the_context = &context_object;
std::atomic<bool> is_initialized{false};
thread_local std::vector<void*> contexts;
thread_local bool is_in_callback = false;

int count_of_devices() {
  const char* const said = std::getenv("FEEDLANE_STAND_IN_DEVICES");
  return said != nullptr ? std::atoi(said) : 1;
}

// Whether this process may write there.
bool is_writable(const void* memory) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long first = 0, end = 0;
    char access[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &first, &end, access) == 3 && at >= first && at < end)
      return access[1] == 'w';
  }
  return false;
}

// What every call begins with.
Result usable() {
  if (is_in_callback) return not_permitted;
  if (!is_initialized) return not_initialized;
  return contexts.empty() || contexts.back() == nullptr ? invalid_context : ok;
}

// What a global capture of any thread forbids, and what invalidates it.
Result usable_outside_of_captures() {
  if (const Result r = usable(); r != ok) return r;
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  bool is_forbidden = false;
  for (Stream* s : d.capturing) {
    if (s->capture->mode != 0) continue;
    s->capture->is_invalid = true;
    is_forbidden = true;
  }
  return is_forbidden ? capture_unsupported : ok;
}

Stream& stream_of(void* handle) { return handle == nullptr ? driver().null_stream : *static_cast<Stream*>(handle); }

// Does it in the stream's turn, or captures it.
Result enqueue(void* handle, Work work) {
  Stream& s = stream_of(handle);
  if (s.capture == nullptr) {
    s.enqueue(std::move(work));
    return ok;
  }
  if (s.capture->is_invalid) return capture_invalidated;
  s.capture->graph.works.push_back(std::move(work));
  return ok;
}

// Of what can't be captured.
Result enqueue_outside_of_captures(void* handle, Work work) {
  Stream& s = stream_of(handle);
  if (s.capture == nullptr) return enqueue(handle, std::move(work));
  s.capture->is_invalid = true;
  return capture_unsupported;
}

void* pointer(unsigned long long device) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(device)); }

struct Named {
  Result result;
  const char* name;
};
constexpr Named names[] = {{ok, "CUDA_SUCCESS"},
                           {invalid_value, "CUDA_ERROR_INVALID_VALUE"},
                           {out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY"},
                           {not_initialized, "CUDA_ERROR_NOT_INITIALIZED"},
                           {no_device, "CUDA_ERROR_NO_DEVICE"},
                           {invalid_device, "CUDA_ERROR_INVALID_DEVICE"},
                           {invalid_context, "CUDA_ERROR_INVALID_CONTEXT"},
                           {invalid_handle, "CUDA_ERROR_INVALID_HANDLE"},
                           {already_registered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
                           {not_registered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
                           {not_permitted, "CUDA_ERROR_NOT_PERMITTED"},
                           {capture_unsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
                           {capture_invalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
                           {capture_unmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
                           {capture_wrong_thread, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"}};

}  // namespace

#define EXPORTED __attribute__((visibility("default")))
#define REQUIRE_OK(expression) \
  if (const Result required = (expression); required != ok) return required

extern "C" {

// ---- the device ----

EXPORTED int cuInit(unsigned) {
  if (count_of_devices() == 0) return no_device;
  is_initialized = true;
  return ok;
}
EXPORTED int cuDriverGetVersion(int* version) {
  *version = 12000;
  return ok;
}
EXPORTED int cuDeviceGetCount(int* count) {
  *count = count_of_devices();
  return is_initialized ? ok : not_initialized;
}
EXPORTED int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < count_of_devices() ? ok : invalid_device;
}
EXPORTED int cuDeviceGetName(char* name, int length, int) {
  (void)std::snprintf(name, static_cast<std::size_t>(length), "stand-in, no GPU");
  return ok;
}
EXPORTED int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = the_context;
  return is_initialized ? ok : not_initialized;
}
EXPORTED int cuDevicePrimaryCtxRelease_v2(int) { return is_in_callback ? not_permitted : ok; }
EXPORTED int cuCtxPushCurrent_v2(void* context) {
  if (is_in_callback) return not_permitted;
  contexts.push_back(context);
  return ok;
}
EXPORTED int cuCtxPopCurrent_v2(void** context) {
  if (is_in_callback) return not_permitted;
  if (contexts.empty()) return invalid_context;
  *context = contexts.back();
  contexts.pop_back();
  return ok;
}
EXPORTED int cuCtxSetCurrent(void* context) {
  if (!contexts.empty()) contexts.pop_back();
  contexts.push_back(context);
  return ok;
}
EXPORTED int cuGetErrorName(int error, const char** name) {
  for (const Named& n : names)
    if (n.result == error) {
      *name = n.name;
      return ok;
    }
  *name = nullptr;
  return invalid_value;
}
EXPORTED int cuGetErrorString(int error, const char** text) {
  *text = error == ok ? "no error" : "said by the stand-in";
  return ok;
}

// ---- memory ----

EXPORTED int cuMemAlloc_v2(unsigned long long* device, std::size_t bytes) {
  REQUIRE_OK(usable_outside_of_captures());
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) return out_of_memory;
  (void)driver().allocated.add(memory, bytes);
  *device = reinterpret_cast<std::uintptr_t>(memory);
  return ok;
}
EXPORTED int cuMemFree_v2(unsigned long long device) {
  REQUIRE_OK(usable_outside_of_captures());
  if (!driver().allocated.remove(pointer(device))) return invalid_value;
  std::free(pointer(device));
  return ok;
}
EXPORTED int cuMemHostRegister_v2(void* host, std::size_t bytes, unsigned flags) {
  REQUIRE_OK(usable_outside_of_captures());
  constexpr unsigned read_only = 8;
  if ((flags & read_only) == 0 && !is_writable(host)) return invalid_value;  // the kernel refuses to pin it
  return driver().registered.add(host, bytes) ? ok : already_registered;
}
EXPORTED int cuMemHostUnregister(void* host) {
  REQUIRE_OK(usable_outside_of_captures());
  return driver().registered.remove(host) ? ok : not_registered;
}
EXPORTED int cuMemAllocHost_v2(void** host, std::size_t bytes) {
  REQUIRE_OK(usable_outside_of_captures());
  constexpr std::size_t page = 4096;
  *host = std::aligned_alloc(page, (bytes + page - 1) / page * page);
  if (*host == nullptr) return out_of_memory;
  return driver().registered.add(*host, bytes) ? ok : already_registered;
}
EXPORTED int cuMemFreeHost(void* host) {
  REQUIRE_OK(usable_outside_of_captures());
  if (!driver().registered.remove(host)) return invalid_value;
  std::free(host);
  return ok;
}
EXPORTED int cuMemcpyHtoD_v2(unsigned long long device, const void* host, std::size_t bytes) {
  REQUIRE_OK(usable_outside_of_captures());
  if (!driver().allocated.contains(pointer(device), bytes)) return invalid_value;
  std::memcpy(pointer(device), host, bytes);
  return ok;
}
EXPORTED int cuMemcpyDtoH_v2(void* host, unsigned long long device, std::size_t bytes) {
  REQUIRE_OK(usable_outside_of_captures());
  if (!driver().allocated.contains(pointer(device), bytes)) return invalid_value;
  std::memcpy(host, pointer(device), bytes);
  return ok;
}
EXPORTED int cuMemcpyHtoDAsync_v2(unsigned long long device, const void* host, std::size_t bytes, void* stream) {
  REQUIRE_OK(usable());
  if (!driver().allocated.contains(pointer(device), bytes)) return invalid_value;
  REQUIRE_OK(enqueue(stream, [=] { std::memcpy(pointer(device), host, bytes); }));
  // Pageable memory may be overwritten when the call has returned.
  if (stream_of(stream).capture == nullptr && !driver().registered.contains(host, bytes)) stream_of(stream).wait();
  return ok;
}
EXPORTED int cuMemsetD32Async(unsigned long long device, unsigned value, std::size_t count, void* stream) {
  REQUIRE_OK(usable());
  if (!driver().allocated.contains(pointer(device), count * 4)) return invalid_value;
  return enqueue(stream, [=] {
    auto* const words = static_cast<unsigned*>(pointer(device));
    for (std::size_t i = 0; i < count; i++) words[i] = value;
  });
}

// ---- streams and events ----

EXPORTED int cuStreamCreate(void** stream, unsigned) {
  REQUIRE_OK(usable());
  *stream = new Stream;
  return ok;
}
EXPORTED int cuStreamDestroy_v2(void* stream) {
  REQUIRE_OK(usable());
  if (stream == nullptr) return invalid_handle;
  delete static_cast<Stream*>(stream);
  return ok;
}
EXPORTED int cuStreamSynchronize(void* stream) {
  REQUIRE_OK(usable_outside_of_captures());
  stream_of(stream).wait();
  return ok;
}
EXPORTED int cuStreamAddCallback(void* stream, void (*callback)(void*, int, void*), void* passed, unsigned) {
  REQUIRE_OK(usable());
  return enqueue_outside_of_captures(stream, [=] {
    is_in_callback = true;
    callback(stream, ok, passed);
    is_in_callback = false;
  });
}
EXPORTED int cuEventCreate(void** event, unsigned) {
  REQUIRE_OK(usable());
  *event = new std::shared_ptr<Event>(std::make_shared<Event>());
  return ok;
}
EXPORTED int cuEventDestroy_v2(void* event) {
  REQUIRE_OK(usable());
  delete static_cast<std::shared_ptr<Event>*>(event);
  return ok;
}
EXPORTED int cuEventRecord(void* event, void* stream) {
  REQUIRE_OK(usable());
  const std::shared_ptr<Event> e = *static_cast<std::shared_ptr<Event>*>(event);
  return enqueue_outside_of_captures(stream, [e, number = e->record()] { e->pass(number); });
}
EXPORTED int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  REQUIRE_OK(usable());
  const std::shared_ptr<Event> e = *static_cast<std::shared_ptr<Event>*>(event);
  return enqueue_outside_of_captures(stream, [e, number = e->newest()] { e->wait_for(number); });
}

// ---- captures and graphs ----

EXPORTED int cuStreamBeginCapture_v2(void* stream, int mode) {
  REQUIRE_OK(usable());
  if (stream == nullptr) return capture_unsupported;
  Stream& s = *static_cast<Stream*>(stream);
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  if (s.capture != nullptr) return invalid_value;
  s.capture = std::make_unique<Capture>();
  s.capture->mode = mode;
  s.capture->thread = std::this_thread::get_id();
  d.capturing.insert(&s);
  return ok;
}
EXPORTED int cuStreamIsCapturing(void* stream, int* status) {
  REQUIRE_OK(usable());
  const Stream& s = stream_of(stream);
  *status = s.capture == nullptr ? 0 : s.capture->is_invalid ? 2 : 1;
  return ok;
}
EXPORTED int cuStreamEndCapture(void* stream, void** graph) {
  REQUIRE_OK(usable());
  *graph = nullptr;
  Stream& s = stream_of(stream);
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  if (s.capture == nullptr) return capture_unmatched;
  if (s.capture->mode != 2 && s.capture->thread != std::this_thread::get_id()) return capture_wrong_thread;
  const std::unique_ptr<Capture> capture = std::move(s.capture);
  d.capturing.erase(&s);
  if (capture->is_invalid) return capture_invalidated;
  *graph = new Graph(std::move(capture->graph));
  return ok;
}
EXPORTED int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  REQUIRE_OK(usable());
  *executable = new Graph(*static_cast<Graph*>(graph));
  return ok;
}
EXPORTED int cuGraphLaunch(void* executable, void* stream) {
  REQUIRE_OK(usable());
  return enqueue_outside_of_captures(stream, [works = static_cast<Graph*>(executable)->works] {
    for (const Work& work : works) work();
  });
}
EXPORTED int cuGraphExecDestroy(void* executable) {
  delete static_cast<Graph*>(executable);
  return ok;
}
EXPORTED int cuGraphDestroy(void* graph) {
  delete static_cast<Graph*>(graph);
  return ok;
}
}
