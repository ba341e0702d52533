// SPDX-License-Identifier: Apache-2.0
// Builds DLPack's managed tensors.
#include "tensors/dlpack.hpp"

#include <algorithm>
#include <type_traits>

namespace feedlane::dlpack {
namespace {

template <class Managed>
void free_export(Managed* self) {
  auto* exported = static_cast<Export<Managed>*>(self->manager_ctx);
  exported->give_back(exported->owner, exported->token);
  delete exported;
}

}  // namespace

template <class Managed>
std::unique_ptr<Export<Managed>> wrap(const feedlane_tensor& tensor, std::int32_t device, bool is_read_only,
                                      GiveBack give_back, void* owner, std::uint64_t token) {
  auto exported = std::make_unique<Export<Managed>>();
  std::copy_n(tensor.shape, tensor.ndim, exported->shape);
  std::copy_n(tensor.strides, tensor.ndim, exported->strides);
  exported->give_back = give_back;
  exported->owner = owner;
  exported->token = token;
  Managed& m = exported->managed;
  m.manager_ctx = exported.get();
  m.deleter = free_export<Managed>;
  if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
    m.version = version;
    m.flags = is_read_only ? flag_read_only : 0;
  }
  DLTensor& t = m.dl_tensor;
  t.data = tensor.bytes == 0 ? nullptr : tensor.data;  // the specification requires nullptr for size 0
  t.device = {device, 0};
  t.ndim = tensor.ndim;
  t.dtype = {tensor.dtype.code, tensor.dtype.bits, std::max<std::uint16_t>(tensor.dtype.lanes, 1)};
  t.shape = exported->shape;
  t.strides = exported->strides;
  return exported;
}

template std::unique_ptr<Export<DLManagedTensor>> wrap(const feedlane_tensor&, std::int32_t, bool, GiveBack, void*,
                                                       std::uint64_t);
template std::unique_ptr<Export<DLManagedTensorVersioned>> wrap(const feedlane_tensor&, std::int32_t, bool, GiveBack,
                                                                void*, std::uint64_t);

}  // namespace feedlane::dlpack
