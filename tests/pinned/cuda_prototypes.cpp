// SPDX-License-Identifier: Apache-2.0
// lib/pinned/cuda.hpp against the toolkit's own header: compiled, never run. Enums are ints there, and handles pointers.
#include <cuda.h>

#include <cstring>
#include <type_traits>

#include "pinned/cuda.hpp"

namespace {

template <class T>
constexpr bool is_number = std::is_integral_v<T> || std::is_enum_v<T>;

template <class A, class B>
constexpr bool is_alike = sizeof(A) == sizeof(B) &&
                          ((is_number<A> && is_number<B>) || (std::is_pointer_v<A> && std::is_pointer_v<B>));

template <class A, class B>
struct Alike : std::false_type {};
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B)) struct Alike<R (*)(A...), S (*)(B...)>
    : std::bool_constant<is_alike<R, S> && (is_alike<A, B> && ...)> {
};

// cuda.h gives some functions later symbols by macros: the address is that of the symbol in use.
#define COMPARE(member, function) \
  static_assert(Alike<decltype(feedlane::pinned::cuda::Driver::member), decltype(&function)>::value, #function)

COMPARE(init, cuInit);
COMPARE(device_get, cuDeviceGet);
COMPARE(device_count, cuDeviceGetCount);
COMPARE(context_retain, cuDevicePrimaryCtxRetain);
COMPARE(context_release, cuDevicePrimaryCtxRelease);
COMPARE(context_push, cuCtxPushCurrent);
COMPARE(context_pop, cuCtxPopCurrent);
COMPARE(host_register, cuMemHostRegister);
COMPARE(host_unregister, cuMemHostUnregister);
COMPARE(copy_to_device, cuMemcpyHtoDAsync);
COMPARE(add_callback, cuStreamAddCallback);
COMPARE(error_name, cuGetErrorName);
COMPARE(error_string, cuGetErrorString);
static_assert(CUDA_SUCCESS == 0);
static_assert(CU_MEMHOSTREGISTER_PORTABLE == feedlane::pinned::cuda::host_register_portable);

}  // namespace
