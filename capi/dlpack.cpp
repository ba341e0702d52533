// SPDX-License-Identifier: Apache-2.0
// A batch's tensors for other libraries: each export holds a reference of the batch.
#include "arena/dlpack.hpp"

#include "loader.hpp"

using namespace feedlane;
using namespace feedlane::capi;

namespace {

// On any thread, after destroy, at exit. In a forked child the batch is the parent's: nothing is given back.
void give_back(void* loader, std::uint64_t token) noexcept {
  (void)feedlane_batch_release(static_cast<feedlane_loader*>(loader), token);
}

// A reference of a batch until `keep`.
class Reference {
 public:
  Reference(feedlane_loader* l, std::uint64_t token) : loader_(l), token_(token) {}
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  ~Reference() {
    if (loader_ != nullptr) give_back(loader_, token_);
  }
  void keep() { loader_ = nullptr; }

 private:
  feedlane_loader* loader_;
  std::uint64_t token_;
};

template <class Managed>
int32_t export_tensor(feedlane_loader* l, uint64_t token, int32_t tensor, int32_t flags, Managed** out,
                      feedlane_error* err) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    if (l == nullptr) return refuse_null(error, "l");
    if (out == nullptr) return refuse_null(error, "out");
    if (const Status s = check_batches(l); s != FEEDLANE_OK)
      return error.fail(s, "the handle belongs to the parent process");
    if ((flags & ~FEEDLANE_DLPACK_CUDA_HOST) != 0)
      return refuse(error, "flags", flags, FEEDLANE_DLPACK_CUDA_HOST, "only FEEDLANE_DLPACK_CUDA_HOST is known");
    if (const Status s = l->loader->retain(token); s != FEEDLANE_OK)
      return error.fail(s, s == FEEDLANE_E_STALE ? "the batch was released, or there never was such a token"
                                                 : "the batch has as many references as can be counted");
    Reference reference(l, token);
    const std::vector<feedlane_tensor>& tensors = l->loader->tensors(token);
    if (tensor < 0 || static_cast<std::size_t>(tensor) >= tensors.size())
      return error.refuse(FEEDLANE_E_ARGUMENT, "tensor", tensor, static_cast<std::int64_t>(tensors.size()),
                          "tensor is %d, the batch has %zu", tensor, tensors.size());
    if (flags != 0)
      return error.fail(FEEDLANE_E_STATE, "the batch's memory isn't registered with CUDA, so it can't be CUDAHost");
    auto exported = dlpack::wrap<Managed>(tensors[static_cast<std::size_t>(tensor)], dlpack::device_cpu, give_back, l, token);
    reference.keep();
    *out = &exported.release()->managed;
    return FEEDLANE_OK;
  });
}

}  // namespace

extern "C" {

int32_t feedlane_batch_dlpack(feedlane_loader* l, uint64_t token, int32_t tensor, int32_t flags,
                              struct DLManagedTensorVersioned** out, feedlane_error* err) {
  return export_tensor(l, token, tensor, flags, out, err);
}

int32_t feedlane_batch_dlpack_legacy(feedlane_loader* l, uint64_t token, int32_t tensor, int32_t flags,
                                     struct DLManagedTensor** out, feedlane_error* err) {
  return export_tensor(l, token, tensor, flags, out, err);
}

}  // extern "C"
