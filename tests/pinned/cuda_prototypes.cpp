// SPDX-License-Identifier: Apache-2.0
// The declarations of CUDA's driver in lib/pinned/cuda.hpp, in the tests and in the command's bench, against the toolkit's own
// header: compiled, never run. Enums are ints there, and handles pointers.
#include <cuda.h>

#include <string_view>
#include <type_traits>

#include "../../tools/feedlane/bench/cuda.hpp"
#include "cuda_device.hpp"
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

// Those of tests and bench with their symbols too.
#define SYMBOL(member, symbol, arguments) [[maybe_unused]] constexpr std::string_view member = symbol;
namespace tests_symbols {
FEEDLANE_TEST_CUDA_FUNCTIONS(SYMBOL)
}
namespace bench_symbols {
BENCH_CUDA_FUNCTIONS(SYMBOL)
}

#define TEXT_OF(function) #function
#define TEXT(function) TEXT_OF(function)
#define COMPARE_IN(table, symbols, member, function)                                    \
  static_assert(Alike<decltype(table::member), decltype(&function)>::value, #function); \
  static_assert(symbols::member == TEXT(function), #function)
#define IN_TESTS(member, function) COMPARE_IN(feedlane::test::Api, tests_symbols, member, function)
#define IN_BENCH(member, function) COMPARE_IN(bench::cuda::Driver, bench_symbols, member, function)

IN_TESTS(init, cuInit);
IN_TESTS(retain, cuDevicePrimaryCtxRetain);
IN_TESTS(set_current, cuCtxSetCurrent);
IN_TESTS(allocate, cuMemAlloc);
IN_TESTS(free, cuMemFree);
IN_TESTS(stream_create, cuStreamCreate);
IN_TESTS(stream_destroy, cuStreamDestroy);
IN_TESTS(stream_wait, cuStreamSynchronize);
IN_TESTS(read, cuMemcpyDtoH);
IN_TESTS(name, cuDeviceGetName);
IN_TESTS(fill, cuMemsetD32Async);
IN_TESTS(capture_begin, cuStreamBeginCapture);
IN_TESTS(capture_end, cuStreamEndCapture);
IN_TESTS(capture_status, cuStreamIsCapturing);
IN_TESTS(instantiate, cuGraphInstantiateWithFlags);
IN_TESTS(launch, cuGraphLaunch);
IN_TESTS(executable_destroy, cuGraphExecDestroy);
IN_TESTS(graph_destroy, cuGraphDestroy);
IN_BENCH(init, cuInit);
IN_BENCH(device_count, cuDeviceGetCount);
IN_BENCH(device_name, cuDeviceGetName);
IN_BENCH(driver_version, cuDriverGetVersion);
IN_BENCH(context_retain, cuDevicePrimaryCtxRetain);
IN_BENCH(set_current, cuCtxSetCurrent);
IN_BENCH(allocate, cuMemAlloc);
IN_BENCH(free, cuMemFree);
IN_BENCH(allocate_host, cuMemAllocHost);
IN_BENCH(free_host, cuMemFreeHost);
IN_BENCH(copy, cuMemcpyHtoD);
IN_BENCH(copy_async, cuMemcpyHtoDAsync);
IN_BENCH(fill_async, cuMemsetD32Async);
IN_BENCH(stream_create, cuStreamCreate);
IN_BENCH(stream_destroy, cuStreamDestroy);
IN_BENCH(stream_wait, cuStreamSynchronize);
IN_BENCH(event_create, cuEventCreate);
IN_BENCH(event_destroy, cuEventDestroy);
IN_BENCH(event_record, cuEventRecord);
IN_BENCH(stream_wait_event, cuStreamWaitEvent);
IN_BENCH(error_name, cuGetErrorName);
static_assert(CU_STREAM_NON_BLOCKING == bench::cuda::non_blocking);
static_assert(CU_EVENT_DISABLE_TIMING == bench::cuda::without_timing);
static_assert(CU_STREAM_CAPTURE_MODE_GLOBAL == 0);
static_assert(CU_STREAM_CAPTURE_STATUS_ACTIVE == 1);
static_assert(CUDA_SUCCESS == 0);
static_assert(CU_MEMHOSTREGISTER_PORTABLE == feedlane::pinned::cuda::host_register_portable);

}  // namespace
