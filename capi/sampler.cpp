// SPDX-License-Identifier: Apache-2.0
#include "sampler.hpp"

using namespace feedlane;
using namespace feedlane::capi;

namespace {

template <class Make>
int32_t create(feedlane_sampler** out, feedlane_error* err, Make&& make) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    if (out == nullptr) return refuse_null(error, "out");
    auto handle = std::make_unique<feedlane_sampler>();
    Status s = handle->stamp.take(error);
    if (s == FEEDLANE_OK) s = make(handle->sampler, error);
    if (s == FEEDLANE_OK) *out = handle.release();
    return s;
  });
}

}  // namespace

extern "C" {

int32_t feedlane_sampler_sequential(int64_t length, feedlane_sampler** out, feedlane_error* err) {
  return create(out, err, [&](auto& sampler, Error& error) { return loader::make_sequential(length, sampler, error); });
}

int32_t feedlane_sampler_random(const feedlane_random_config* config, feedlane_sampler** out, feedlane_error* err) {
  return create(out, err, [&](auto& sampler, Error& error) {
    feedlane_random_config c;
    const Status s = read_versioned(config, c, "config", error);
    return s == FEEDLANE_OK ? loader::make_random(c.length, c.seed, sampler, error) : s;
  });
}

int32_t feedlane_sampler_restart(feedlane_sampler* s, int64_t epoch, feedlane_error* err) {
  return call_one(s, "s", err, [&](Error& error) {
    if (epoch < 0)
      return error.refuse(FEEDLANE_E_ARGUMENT, "epoch", epoch, 0, "epoch %lld is negative",
                          static_cast<long long>(epoch));
    return s->sampler->restart(epoch, error);
  });
}

int32_t feedlane_sampler_next(feedlane_sampler* s, int64_t* indices, uint64_t cap, uint64_t* got, feedlane_error* err) {
  return call_one(s, "s", err, [&](Error& error) {
    if (indices == nullptr) return refuse_null(error, "indices");
    if (got == nullptr) return refuse_null(error, "got");
    if (cap == 0) return error.refuse(FEEDLANE_E_ARGUMENT, "cap", 0, 1, "cap is 0: there is no room for an index");
    return s->sampler->next(indices, cap, *got, error);
  });
}

int32_t feedlane_sampler_length(const feedlane_sampler* s, int64_t* length) {
  return call_any(s, "s", nullptr, [&](Error& error) {
    if (length == nullptr) return refuse_null(error, "length");
    *length = s->sampler->length();
    return Status{FEEDLANE_OK};
  });
}

int32_t feedlane_sampler_destroy(feedlane_sampler** s) {
  return destroy(s, [](feedlane_sampler* handle) {
    delete handle;
    return Status{FEEDLANE_OK};
  });
}

}  // extern "C"
