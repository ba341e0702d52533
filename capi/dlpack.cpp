// SPDX-License-Identifier: Apache-2.0
// feedlane/dlpack.h: a batch's tensors for other libraries; each export has a reference to the batch.
#include "tensors/dlpack.hpp"

#include "feedlane/dlpack.h"
#include "loader.hpp"

using namespace feedlane;
using namespace feedlane::capi;

namespace {

// May be called on any thread, also after destroy and at exit. In a forked child it does nothing, because the batch is
// the parent's.
void give_back(void* loader, std::uint64_t token) noexcept {
  (void)feedlane_batch_release(static_cast<feedlane_loader*>(loader), token);
}

template <class Managed>
void* wrap(const feedlane_tensor& t, std::int32_t device, feedlane_loader* l, uint64_t token) {
  return &dlpack::wrap<Managed>(t, device, l->source->leases().is_read_only(token), give_back, l, token)
              .release()
              ->managed;
}

}  // namespace

extern "C" {

int32_t feedlane_batch_dlpack(feedlane_loader* l, uint64_t token, int32_t tensor, int32_t flags, void** out,
                              feedlane_error* err) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    Status s = check_batches(l, error);
    if (s == FEEDLANE_OK && out == nullptr) return refuse_null(error, "out");
    constexpr int32_t known = FEEDLANE_DLPACK_PINNED | FEEDLANE_DLPACK_LEGACY;
    if (s == FEEDLANE_OK && (flags & ~known) != 0)
      return refuse(error, "flags", flags, known, "must be a sum of FEEDLANE_DLPACK_... flags");
    if (s != FEEDLANE_OK) return s;
    lending::Leases& leases = l->source->leases();
    lending::Reference reference;
    s = reference.take(leases, token, error);
    const feedlane_tensor* t = nullptr;
    if (s == FEEDLANE_OK) s = leases.find_tensor(token, tensor, t, error);
    if (s != FEEDLANE_OK) return s;
    const bool is_pinned = (flags & FEEDLANE_DLPACK_PINNED) != 0;
    const std::int32_t device = is_pinned ? leases.registered_device(*t) : dlpack::device_cpu;
    if (device == 0)
      return error.fail(FEEDLANE_E_STATE,
                        "FEEDLANE_DLPACK_PINNED needs memory that is registered with a device that DLPack supports, "
                        "and this tensor's memory is not");
    *out = (flags & FEEDLANE_DLPACK_LEGACY) != 0 ? wrap<DLManagedTensor>(*t, device, l, token)
                                                 : wrap<DLManagedTensorVersioned>(*t, device, l, token);
    reference.pass_on();  // owned by the export now
    return FEEDLANE_OK;
  });
}

}  // extern "C"
