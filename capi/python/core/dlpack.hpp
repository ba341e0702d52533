// SPDX-License-Identifier: Apache-2.0
// DLPack's structs as specified in version 1.3 (https://dmlc.github.io/dlpack/latest/c_api.html), on a 64-bit system.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedlane::python {

struct DLDevice {
  std::int32_t device_type, device_id;
};

struct DLDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t *shape, *strides;
  std::uint64_t byte_offset;
};

// Before version 1.0. Capsule name: "dltensor".
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

// From version 1.0 on. Capsule name: "dltensor_versioned".
struct DLManagedTensorVersioned {
  struct {
    std::uint32_t major, minor;
  } version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DLTensor dl_tensor;
};

// From version 1.3 on: what a package's tensor type has as __dlpack_c_exchange_api__. Capsule name: "dlpack_exchange_api".
// The functions that are not called here have no types.
struct DLPackExchangeAPI {
  struct {
    std::uint32_t major, minor;
  } version;
  const void* prev_api;
  void *managed_tensor_allocator, *managed_tensor_from_py_object_no_sync, *managed_tensor_to_py_object_no_sync;
  // Describes the tensor, which keeps shape, strides and data. 0, or -1 with an exception. May be null.
  int (*dltensor_from_py_object_no_sync)(void* py_object, DLTensor* out);
  void* current_work_stream;
};

static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, device) == 8 && offsetof(DLTensor, ndim) == 16 &&
              offsetof(DLTensor, dtype) == 20 && offsetof(DLTensor, shape) == 24 && offsetof(DLTensor, strides) == 32 &&
              offsetof(DLTensor, byte_offset) == 40);
static_assert(sizeof(DLManagedTensor) == 64 && offsetof(DLManagedTensor, manager_ctx) == 48 &&
              offsetof(DLManagedTensor, deleter) == 56);
static_assert(sizeof(DLManagedTensorVersioned) == 80 && offsetof(DLManagedTensorVersioned, manager_ctx) == 8 &&
              offsetof(DLManagedTensorVersioned, deleter) == 16 && offsetof(DLManagedTensorVersioned, flags) == 24 &&
              offsetof(DLManagedTensorVersioned, dl_tensor) == 32);
static_assert(sizeof(DLPackExchangeAPI) == 56 && offsetof(DLPackExchangeAPI, dltensor_from_py_object_no_sync) == 40);

}  // namespace feedlane::python
