// SPDX-License-Identifier: Apache-2.0
// A GPU as tests use it: by the functions of CUDA's driver that a trainer has from its framework.
#pragma once

#include <doctest/doctest.h>

#include "device.hpp"
#include "pinned/cuda.hpp"

namespace feedlane::test {

using pinned::cuda::DevicePointer;
using pinned::cuda::Result;
using pinned::cuda::Stream;
using Graph = struct CUgraph_st*;
using Executable = struct CUgraphExec_st*;

// X(member, symbol in the library, arguments); each returns a Result
#define FEEDLANE_TEST_CUDA_FUNCTIONS(X)                                                        \
  X(init, "cuInit", (unsigned flags))                                                          \
  X(retain, "cuDevicePrimaryCtxRetain", (pinned::cuda::Context * context, int device))         \
  X(set_current, "cuCtxSetCurrent", (pinned::cuda::Context context))                           \
  X(allocate, "cuMemAlloc_v2", (DevicePointer * memory, std::size_t bytes))                    \
  X(free, "cuMemFree_v2", (DevicePointer memory))                                              \
  X(stream_create, "cuStreamCreate", (Stream * stream, unsigned flags))                        \
  X(stream_destroy, "cuStreamDestroy_v2", (Stream stream))                                     \
  X(stream_wait, "cuStreamSynchronize", (Stream stream))                                       \
  X(read, "cuMemcpyDtoH_v2", (void* to, DevicePointer from, std::size_t bytes))                \
  X(name, "cuDeviceGetName", (char* name, int length, int device))                             \
  X(fill, "cuMemsetD32Async", (DevicePointer to, unsigned value, std::size_t n, Stream s))     \
  X(capture_begin, "cuStreamBeginCapture_v2", (Stream stream, int mode))                       \
  X(capture_end, "cuStreamEndCapture", (Stream stream, Graph * graph))                         \
  X(capture_status, "cuStreamIsCapturing", (Stream stream, int* status))                       \
  X(instantiate, "cuGraphInstantiateWithFlags", (Executable * out, Graph, unsigned long long)) \
  X(launch, "cuGraphLaunch", (Executable graph, Stream stream))                                \
  X(executable_destroy, "cuGraphExecDestroy", (Executable graph))                              \
  X(graph_destroy, "cuGraphDestroy", (Graph graph))

struct Api {
#define FEEDLANE_TEST_CUDA_MEMBER(member, symbol, arguments) Result(*member) arguments = nullptr;
  FEEDLANE_TEST_CUDA_FUNCTIONS(FEEDLANE_TEST_CUDA_MEMBER)
#undef FEEDLANE_TEST_CUDA_MEMBER
};

// The driver, with the first device's primary context current in the thread that called first. Where there is no device the
// program is skipped.
const Api& api();
// Makes that context current in this thread.
void use_device();
// Whether the driver is the stand-in: what only it promises is not checked elsewhere.
bool is_stand_in();

class CudaDevice final : public Device {
 public:
  CudaDevice() : stream_(make_stream()) {}
  ~CudaDevice() override { CHECK(api().stream_destroy(stream_) == 0); }
  // One that doesn't wait for the NULL stream. The caller destroys it.
  static Stream make_stream();
  feedlane_pool_config config() override;
  void* allocate(std::uint64_t bytes) override;
  void free(void* memory) override { CHECK(api().free(reinterpret_cast<DevicePointer>(memory)) == 0); }
  void* stream() override { return stream_; }
  void wait(void* stream) override { REQUIRE(api().stream_wait(static_cast<Stream>(stream)) == 0); }
  std::string read(const void* memory, std::uint64_t bytes) override;

 private:
  Stream stream_;
};

}  // namespace feedlane::test
