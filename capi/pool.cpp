// SPDX-License-Identifier: Apache-2.0
// feedlane/pool.h: pools of registered memory.
#include "pool.hpp"

#include "feedlane/pool.h"

using namespace feedlane;
using namespace feedlane::capi;

extern "C" {

int32_t feedlane_pool_create(const feedlane_pool_config* config, feedlane_pool** out, feedlane_error* err) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    if (out == nullptr) return refuse_null(error, "out");
    auto handle = std::make_unique<feedlane_pool>();
    Status s = handle->stamp.take(error);
    if (s == FEEDLANE_OK) s = pinned::Pool::create(config, handle->pool, error);
    if (s == FEEDLANE_OK) *out = handle.release();
    return s;
  });
}

int32_t feedlane_pool_acquire(feedlane_pool* p, int64_t timeout_ns, feedlane_buffer* out, feedlane_error* err) {
  return call_any(p, "p", err, [&](Error& error) {
    Status s = check_output(out, "out", error);
    constexpr std::size_t least = offsetof(feedlane_buffer, bytes);  // without token and address a buffer is useless
    if (s == FEEDLANE_OK && out->size < least)
      s = error.refuse(FEEDLANE_E_ABI, "out", out->size, least,
                       "out->size is {}: must be at least {}, to have room for the token and the address", out->size,
                       least);
    if (s == FEEDLANE_OK) s = check_timeout(timeout_ns, error);
    feedlane_buffer buffer;
    if (s == FEEDLANE_OK) s = p->pool->acquire(os::Deadline::after(timeout_ns), buffer, error);
    if (s == FEEDLANE_OK) write_versioned(out, buffer);
    return s;
  });
}

int32_t feedlane_pool_release(feedlane_pool* p, uint64_t token, void* stream, feedlane_error* err) {
  return call_any(p, "p", err, [&](Error& error) { return p->pool->release(token, stream, error); });
}

int32_t feedlane_pool_copy(feedlane_pool* p, void* device_memory, const void* host, uint64_t bytes, void* stream,
                           feedlane_error* err) {
  return call_any(p, "p", err, [&](Error& error) {
    if (device_memory == nullptr) return refuse_null(error, "device_memory");
    if (host == nullptr) return refuse_null(error, "host");
    const Status s = check_stream(stream, error);
    return s == FEEDLANE_OK ? p->pool->copy(device_memory, host, bytes, stream, error) : s;
  });
}

int32_t feedlane_pool_register(feedlane_pool* p, void* address, uint64_t bytes, feedlane_error* err) {
  return call_any(p, "p", err, [&](Error& error) {
    if (address == nullptr) return refuse_null(error, "address");
    return p->pool->register_memory(address, bytes, pinned::Pool::Owner::user, error);
  });
}

int32_t feedlane_pool_unregister(feedlane_pool* p, void* address, feedlane_error* err) {
  return call_any(p, "p", err, [&](Error& error) {
    if (address == nullptr) return refuse_null(error, "address");
    return p->pool->unregister_memory(address, pinned::Pool::Owner::user, error);
  });
}

int32_t feedlane_pool_get_stats(const feedlane_pool* p, feedlane_pool_stats* out) {
  return call_any(p, "p", nullptr, [&](Error& error) {
    const Status s = check_output(out, "out", error);
    if (s == FEEDLANE_OK) write_versioned(out, p->pool->stats());
    return s;
  });
}

int32_t feedlane_pool_destroy(feedlane_pool** p) {
  if (p == nullptr || *p == nullptr) return FEEDLANE_OK;
  feedlane_pool* const handle = *p;
  if (!handle->stamp.is_foreign()) {
    Error error;
    if (const Status s = handle->pool->check_idle(error); s != FEEDLANE_OK) return s;
    delete handle;
  }
  *p = nullptr;
  return FEEDLANE_OK;
}

}  // extern "C"
