// SPDX-License-Identifier: Apache-2.0
// Exports a tensor of a batch as a DLPack managed tensor.
#pragma once

#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "feedlane/tensor.h"
#include "tensors/dlpack_abi.hpp"

namespace feedlane::dlpack {

constexpr DLPackVersion version{1, 0};
constexpr std::int32_t device_cpu = 1;
constexpr std::uint64_t flag_read_only = 1;  // the consumer must not write; the legacy struct has no flags

// Called on the consumer's thread, with `owner` and `token`, when the consumer releases a tensor.
using GiveBack = void (*)(void* owner, std::uint64_t token) noexcept;

// A managed tensor and the arrays that it points to, in one allocation. Its deleter calls `give_back`, then frees it.
template <class Managed>
struct Export {
  Managed managed{};
  std::int64_t shape[FEEDLANE_MAX_NDIM] = {};
  std::int64_t strides[FEEDLANE_MAX_NDIM] = {};
  GiveBack give_back = nullptr;
  void* owner = nullptr;
  std::uint64_t token = 0;
};

// May throw bad_alloc. In that case `give_back` isn't called.
template <class Managed>
std::unique_ptr<Export<Managed>> wrap(const feedlane_tensor& tensor, std::int32_t device, bool is_read_only,
                                      GiveBack give_back, void* owner, std::uint64_t token);

extern template std::unique_ptr<Export<DLManagedTensor>> wrap(const feedlane_tensor&, std::int32_t, bool, GiveBack,
                                                              void*, std::uint64_t);
extern template std::unique_ptr<Export<DLManagedTensorVersioned>> wrap(const feedlane_tensor&, std::int32_t, bool,
                                                                       GiveBack, void*, std::uint64_t);

}  // namespace feedlane::dlpack
