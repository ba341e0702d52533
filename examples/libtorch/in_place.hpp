// SPDX-License-Identifier: Apache-2.0
// Tensors of a batch as torch::Tensor, without a copy.
#pragma once

#include <feedlane/loader.hpp>

#include <ATen/DLConvertor.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace in_place {

/// Tensor `i` of `batch`, at its address in the slot: same shape and dtype. It adds a reference to the batch and releases it
/// with its last view, on whichever thread that is, also after the end of `batch` and `loader`. While it lives the slot is
/// not free: see LoaderOptions::held. Throws feedlane::Error if there is no such tensor, c10::Error for a dtype that torch
/// has not, std::runtime_error if the batch was released. Thread safety: any thread.
inline torch::Tensor tensor_of(const feedlane::Loader& loader, const feedlane::Batch& batch, std::size_t i) {
  const feedlane::Tensor tensor = batch[i];
  const feedlane_dtype dtype = tensor.dtype();
  const auto options = torch::dtype(at::toScalarType(DLDataType{dtype.code, dtype.bits, dtype.lanes}));
  const at::IntArrayRef shape(tensor.shape().data(), tensor.shape().size());
  feedlane_loader* const handle = loader.c();  // a held batch keeps it valid
  const std::uint64_t token = batch.token();
  if (feedlane_batch_retain(handle, token) != FEEDLANE_OK) throw std::runtime_error("the batch was released");
  const auto release = [handle, token](void*) { (void)feedlane_batch_release(handle, token); };
  return torch::from_blob(tensor.bytes().data(), shape, release, options);
}

}  // namespace in_place
