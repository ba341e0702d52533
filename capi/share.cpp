// SPDX-License-Identifier: Apache-2.0
// feedlane/share.h: feeders and consumers of a shared loader.
#include "feedlane/share.h"

#include "handle.hpp"
#include "loader.hpp"
#include "pool.hpp"

using namespace feedlane;
using namespace feedlane::capi;

namespace {

Status read_consumer_config(const feedlane_consumer_config* config, feedlane_consumer_config& out, Error& error) {
  out = {};
  out.size = sizeof out;
  out.id = -1;
  return config == nullptr ? FEEDLANE_OK : read_versioned(config, out, "config", error);
}

// The feeder has already configured a place that a descriptor leads to.
Status check_only_pinned(const feedlane_consumer_config& c, Error& error) {
  constexpr const char* why = "must not be set with a descriptor, because the feeder has already configured the place";
  if (c.id > 0) return refuse(error, "config.id", c.id, 0, why);
  if (c.lag != FEEDLANE_LAG_BLOCK) return refuse(error, "config.lag", c.lag, FEEDLANE_LAG_BLOCK, why);
  if (c.evict_after_ns != 0) return refuse(error, "config.evict_after_ns", c.evict_after_ns, 0, why);
  return FEEDLANE_OK;
}

}  // namespace

extern "C" {

int32_t feedlane_loader_open_consumer(feedlane_loader* l, const feedlane_consumer_config* config, int32_t* id,
                                      int32_t* fd, feedlane_error* err) {
  return call_one(l, "l", err, [&](Error& error) {
    if (id == nullptr) return refuse_null(error, "id");
    if (fd == nullptr) return refuse_null(error, "fd");
    feedlane_consumer_config c;
    Status s = read_consumer_config(config, c, error);
    if (s == FEEDLANE_OK && c.pinned != nullptr)
      s = refuse_pointer(error, "config.pinned", true, "must be NULL: the consumer sets it when it joins");
    if (s == FEEDLANE_OK) s = check_feeder(l, error);
    os::Fd theirs;
    if (s == FEEDLANE_OK) s = l->feeder->audience().open_consumer(c, *id, theirs, error);
    if (s == FEEDLANE_OK) *fd = theirs.release();
    return s;
  });
}

int32_t feedlane_loader_serve(feedlane_loader* l, int64_t timeout_ns, feedlane_error* err) {
  return call_one(l, "l", err, [&](Error& error) {
    Status s = check_timeout(timeout_ns, error);
    if (s == FEEDLANE_OK) s = check_feeder(l, error);
    return s == FEEDLANE_OK ? l->feeder->serve(timeout_ns, error) : s;
  });
}

int32_t feedlane_loader_get_consumer(feedlane_loader* l, int32_t nth, feedlane_consumer_stats* out) {
  return call_one(l, "l", nullptr, [&](Error& error) {
    Status s = check_output(out, "out", error);
    if (s == FEEDLANE_OK) s = check_feeder(l, error);
    feedlane_consumer_stats stats;
    if (s == FEEDLANE_OK) s = l->feeder->audience().stats(nth, stats);
    if (s == FEEDLANE_OK) write_versioned(out, stats);
    return s;
  });
}

int32_t feedlane_loader_join(int32_t fd, const char* path, const feedlane_consumer_config* config, int64_t timeout_ns,
                             feedlane_loader** out, feedlane_error* err) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    os::Fd socket;
    Status s = take_descriptor_or(path, "path", fd, socket, error);
    if (s != FEEDLANE_OK) return s;
    if (out == nullptr) return refuse_null(error, "out");
    feedlane_consumer_config c;
    s = read_consumer_config(config, c, error);
    if (s == FEEDLANE_OK && path == nullptr) s = check_only_pinned(c, error);
    if (s == FEEDLANE_OK && c.pinned != nullptr) s = check_handle(c.pinned, "config.pinned", error);
    if (s == FEEDLANE_OK) s = check_timeout(timeout_ns, error);
    if (s != FEEDLANE_OK) return s;
    const os::Deadline deadline = os::Deadline::after(timeout_ns);
    auto handle = std::make_unique<feedlane_loader>();
    std::unique_ptr<sharing::Consumer> consumer;
    pinned::Pool* const pool = c.pinned == nullptr ? nullptr : c.pinned->pool.get();
    s = handle->stamp.take(error);
    if (s == FEEDLANE_OK)
      s = path == nullptr ? sharing::Consumer::join(std::move(socket), pool, deadline, consumer, error)
                          : sharing::Consumer::join(path, c, pool, deadline, consumer, error);
    if (s != FEEDLANE_OK) return s;
    handle->consumer = consumer.get();
    handle->source = std::move(consumer);
    handle->source->leases().use(*handle);
    *out = handle.release();
    return s;
  });
}

}  // extern "C"
