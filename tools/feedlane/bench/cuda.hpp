// SPDX-License-Identifier: Apache-2.0
// CUDA's driver as a trainer uses it, loaded when it is wanted: the command runs without it, and needs no toolkit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace bench::cuda {

using Result = int;
using Pointer = unsigned long long;  // to device memory
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using Context = struct CUctx_st*;

constexpr unsigned non_blocking = 1;    // of a stream: doesn't wait for the NULL stream
constexpr unsigned without_timing = 2;  // of an event

// X(member, symbol in the library, arguments), as CUDA Driver API 13.0 has them, the same since 11.0; each returns a Result.
#define BENCH_CUDA_FUNCTIONS(X)                                                                           \
  X(init, "cuInit", (unsigned flags))                                                                     \
  X(device_count, "cuDeviceGetCount", (int* count))                                                       \
  X(device_name, "cuDeviceGetName", (char* name, int length, int device))                                 \
  X(driver_version, "cuDriverGetVersion", (int* version))                                                 \
  X(context_retain, "cuDevicePrimaryCtxRetain", (Context * context, int device))                          \
  X(set_current, "cuCtxSetCurrent", (Context context))                                                    \
  X(allocate, "cuMemAlloc_v2", (Pointer * memory, std::size_t bytes))                                     \
  X(free, "cuMemFree_v2", (Pointer memory))                                                               \
  X(allocate_host, "cuMemAllocHost_v2", (void** memory, std::size_t bytes))                               \
  X(free_host, "cuMemFreeHost", (void* memory))                                                           \
  X(copy, "cuMemcpyHtoD_v2", (Pointer to, const void* from, std::size_t bytes))                           \
  X(copy_async, "cuMemcpyHtoDAsync_v2", (Pointer to, const void* from, std::size_t bytes, Stream stream)) \
  X(fill_async, "cuMemsetD32Async", (Pointer to, unsigned value, std::size_t count, Stream stream))       \
  X(stream_create, "cuStreamCreate", (Stream * stream, unsigned flags))                                   \
  X(stream_destroy, "cuStreamDestroy_v2", (Stream stream))                                                \
  X(stream_wait, "cuStreamSynchronize", (Stream stream))                                                  \
  X(event_create, "cuEventCreate", (Event * event, unsigned flags))                                       \
  X(event_destroy, "cuEventDestroy_v2", (Event event))                                                    \
  X(event_record, "cuEventRecord", (Event event, Stream stream))                                          \
  X(stream_wait_event, "cuStreamWaitEvent", (Stream stream, Event event, unsigned flags))                 \
  X(error_name, "cuGetErrorName", (Result error, const char** name))

struct Driver {
#define BENCH_CUDA_MEMBER(member, symbol, arguments) Result(*member) arguments = nullptr;
  BENCH_CUDA_FUNCTIONS(BENCH_CUDA_MEMBER)
#undef BENCH_CUDA_MEMBER
};

// Why there is no device; empty: there is one. Loads the driver.
const std::string& missing();

// The driver, with the first device's primary context current in this thread. Ends the program where there is none.
const Driver& use();
std::string device_name();
// As nvidia-smi writes it: the newest CUDA that this driver serves.
std::string driver_version();

// Ends the program unless a call returned 0.
void check(const char* what, Result result);

// Memory of the device.
class Memory {
 public:
  explicit Memory(std::uint64_t bytes);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();
  [[nodiscard]] Pointer get() const { return memory_; }
  [[nodiscard]] void* pointer() const { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(memory_)); }

 private:
  Pointer memory_ = 0;
};

// Memory of the host that the driver has allocated: what cudaMallocHost and torch's pinned allocator return.
class HostMemory {
 public:
  explicit HostMemory(std::uint64_t bytes);
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory();
  [[nodiscard]] void* get() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

class OwnStream {
 public:
  OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream();
  [[nodiscard]] Stream get() const { return stream_; }
  void wait() const;
  // What is enqueued from here on begins when `event`, as it was recorded last, has passed.
  void wait_for(Event event) const;

 private:
  Stream stream_ = nullptr;
};

class OwnEvent {
 public:
  OwnEvent();
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  ~OwnEvent();
  [[nodiscard]] Event get() const { return event_; }
  void record(const OwnStream& stream) const;

 private:
  Event event_ = nullptr;
};

}  // namespace bench::cuda
