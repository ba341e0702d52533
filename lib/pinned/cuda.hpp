// SPDX-License-Identifier: Apache-2.0
// The functions of CUDA's driver that Feedlane uses, as CUDA's documentation declares them (CUDA Driver API 13.0;
// unchanged since 11.0). The driver's library is loaded at run time. So one binary serves machines with and without it,
// and building doesn't need the toolkit. If CUDA's header is installed, tests/pinned/cuda_prototypes.cpp compares the
// prototypes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedlane::pinned::cuda {

using Result = int;
using Device = int;
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using DevicePointer = unsigned long long;
using StreamCallback = void (*)(Stream stream, Result status, void* user_data);

constexpr Result not_supported = 801;
constexpr unsigned host_register_portable = 1;
constexpr unsigned host_register_read_only = 8;

// X(member, symbol in the library, result, arguments)
#define FEEDLANE_CUDA_FUNCTIONS(X)                                                                  \
  X(init, "cuInit", Result, (unsigned flags))                                                       \
  X(device_get, "cuDeviceGet", Result, (Device * device, int ordinal))                              \
  X(device_count, "cuDeviceGetCount", Result, (int* count))                                         \
  X(context_retain, "cuDevicePrimaryCtxRetain", Result, (Context * context, Device device))         \
  X(context_release, "cuDevicePrimaryCtxRelease_v2", Result, (Device device))                       \
  X(context_push, "cuCtxPushCurrent_v2", Result, (Context context))                                 \
  X(context_pop, "cuCtxPopCurrent_v2", Result, (Context * context))                                 \
  X(host_register, "cuMemHostRegister_v2", Result, (void* host, std::size_t bytes, unsigned flags)) \
  X(host_unregister, "cuMemHostUnregister", Result, (void* host))                                   \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2", Result,                                                 \
    (DevicePointer device, const void* host, std::size_t bytes, Stream stream))                     \
  X(add_callback, "cuStreamAddCallback", Result,                                                    \
    (Stream stream, StreamCallback callback, void* user_data, unsigned flags))                      \
  X(error_name, "cuGetErrorName", Result, (Result error, const char** name))                        \
  X(error_string, "cuGetErrorString", Result, (Result error, const char** text))

struct Driver {
#define FEEDLANE_CUDA_MEMBER(member, symbol, result, arguments) result(*member) arguments = nullptr;
  FEEDLANE_CUDA_FUNCTIONS(FEEDLANE_CUDA_MEMBER)
#undef FEEDLANE_CUDA_MEMBER
};

}  // namespace feedlane::pinned::cuda
