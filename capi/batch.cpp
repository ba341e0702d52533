// SPDX-License-Identifier: Apache-2.0
// feedlane/batch.h: references to batches, releases by streams.
#include "feedlane/batch.h"

#include "loader.hpp"
#include "pool.hpp"

using namespace feedlane;
using namespace feedlane::capi;

namespace {

// For a function with an error struct that works on the batches of a loader.
template <class F>
int32_t call_batches(feedlane_loader* l, feedlane_error* err, F&& f) noexcept {
  return call(err, [&](Error& error) -> Status {
    const Status s = check_batches(l, error);
    return s == FEEDLANE_OK ? f(l->source->leases(), error) : s;
  });
}

}  // namespace

extern "C" {

int32_t feedlane_batch_retain(feedlane_loader* l, uint64_t token) {
  const Status s = check_batches(l);
  return s == FEEDLANE_OK ? l->source->leases().retain(token) : s;
}

int32_t feedlane_batch_release(feedlane_loader* l, uint64_t token) {
  const Status s = check_batches(l);
  return s == FEEDLANE_OK ? l->source->leases().give_back(token) : s;
}

int32_t feedlane_batch_release_on(feedlane_loader* l, uint64_t token, void* stream, feedlane_error* err) {
  return call_batches(l, err, [&](lending::Leases& leases, Error& error) {
    const Status s = check_stream(stream, error);
    return s == FEEDLANE_OK ? leases.give_back_on(token, stream, error) : s;
  });
}

int32_t feedlane_batch_record_stream(feedlane_loader* l, uint64_t token, void* stream, feedlane_error* err) {
  return call_batches(l, err, [&](lending::Leases& leases, Error& error) {
    const Status s = check_stream(stream, error);
    return s == FEEDLANE_OK ? leases.record_stream(token, stream, error) : s;
  });
}

}  // extern "C"
