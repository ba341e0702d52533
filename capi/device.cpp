// SPDX-License-Identifier: Apache-2.0
// A loader's batches and devices: copies, releases by streams, the thread that stages.
#include "loader.hpp"
#include "process.hpp"
#include "streams.hpp"

using namespace feedlane;
using namespace feedlane::capi;

namespace {

// A release on a stream: deletes itself.
void on_passed(void* cookie, int32_t status) {
  const std::unique_ptr<StreamUse> use(static_cast<StreamUse*>(cookie));
  use->end(stream_error(status));
}

Status check_pinned(const feedlane_loader* l, Error& error) {
  if (l->loader->leases().pool() != nullptr) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_STATE, "config.pinned", 0, 1, "the loader was made without a pool");
}

}  // namespace

Status feedlane::capi::Reference::take(feedlane_loader* l, std::uint64_t token, Error& error) {
  const Status s = l->loader->leases().retain(token);
  if (s != FEEDLANE_OK)
    return error.fail(s, "{}",
                      s == FEEDLANE_E_STALE ? "the batch was released, or there never was such a token"
                                            : "the batch has as many references as can be counted");
  loader_ = l;
  token_ = token;
  return s;
}

Status feedlane::capi::find_tensor(feedlane_loader* l, std::uint64_t token, std::int32_t number,
                                   const feedlane_tensor*& out, Error& error) {
  const std::vector<feedlane_tensor>& tensors = l->loader->leases().tensors(token);
  if (number < 0 || static_cast<std::size_t>(number) >= tensors.size())
    return error.refuse(FEEDLANE_E_ARGUMENT, "tensor", number, tensors.size(), "tensor is {}, the batch has {}", number,
                        tensors.size());
  out = &tensors[static_cast<std::size_t>(number)];
  return FEEDLANE_OK;
}

extern "C" {

int32_t feedlane_batch_to_device(feedlane_loader* l, uint64_t token, int32_t tensor, void* device_memory,
                                 uint64_t bytes, void* stream, feedlane_error* err) {
  return call(err, [&](Error& error) -> Status {
    Status s = check_batches(l, error);
    if (s == FEEDLANE_OK && device_memory == nullptr) return refuse_null(error, "device_memory");
    if (s == FEEDLANE_OK) s = check_pinned(l, error);
    Reference reference;
    if (s == FEEDLANE_OK) s = reference.take(l, token, error);
    const feedlane_tensor* t = nullptr;
    if (s == FEEDLANE_OK) s = find_tensor(l, token, tensor, t, error);
    if (s != FEEDLANE_OK) return s;
    if (bytes < t->bytes)
      return error.refuse(FEEDLANE_E_ARGUMENT, "bytes", static_cast<int64_t>(bytes), static_cast<int64_t>(t->bytes),
                          "there is room for {} bytes, the tensor has {}", bytes, t->bytes);
    return t->bytes == 0 ? FEEDLANE_OK
                         : l->loader->leases().pool()->backend().copy(device_memory, t->data, t->bytes, stream, error);
  });
}

int32_t feedlane_batch_release_on(feedlane_loader* l, uint64_t token, void* stream, feedlane_error* err) {
  return call(err, [&](Error& error) -> Status {
    Status s = check_batches(l, error);
    if (s == FEEDLANE_OK) s = check_pinned(l, error);
    if (s != FEEDLANE_OK) return s;
    auto use = std::make_unique<StreamUse>(l, token, stream, on_passed);
    // The reference stays while the stream is asked, so the batch is the caller's still if that fails.
    if (s = l->loader->leases().begin_use(token, error); s != FEEDLANE_OK) return s;
    if (s = use->ask(error); s != FEEDLANE_OK) {
      use->end(Error());
      return s;
    }
    (void)use.release();  // on_passed's
    s = give_back(l, token);
    return s == FEEDLANE_OK ? s : error.fail(s, "another thread has released the batch meanwhile");
  });
}

int32_t feedlane_batch_record_stream(feedlane_loader* l, uint64_t token, void* stream, feedlane_error* err) {
  return call(err, [&](Error& error) -> Status {
    Status s = check_batches(l, error);
    if (s == FEEDLANE_OK) s = check_pinned(l, error);
    if (s != FEEDLANE_OK) return s;
    if (!l->loader->leases().pool()->backend().has_when_passed())
      return error.fail(FEEDLANE_E_UNSUPPORTED, "the backend has no `when_passed`");
    Reference reference;
    s = reference.take(l, token, error);
    return s == FEEDLANE_OK ? l->streams->add(l, token, stream, error) : s;
  });
}

int32_t feedlane_loader_run_stager(feedlane_loader* l, feedlane_error* err) {
  return call_any(l, "l", err, [&](Error& error) {
    l->lives.fetch_add(1, std::memory_order_relaxed);  // the caller's own one is there meanwhile
    const Status s = l->loader->run_stager(error);
    let_go(l);
    return s;
  });
}

}  // extern "C"
