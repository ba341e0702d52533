// SPDX-License-Identifier: Apache-2.0
// feedlane/monitor.h: monitors of loaders, here and in other processes, their counters, and events.
#include "monitor.hpp"

#include "feedlane/monitor.h"
#include "monitor/stats.hpp"

using namespace feedlane;
using namespace feedlane::capi;

namespace {

template <class F>
int32_t create(feedlane_monitor** out, feedlane_error* err, F&& open) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    if (out == nullptr) return refuse_null(error, "out");
    auto handle = std::make_unique<feedlane_monitor>();
    Status s = handle->stamp.take(error);
    if (s == FEEDLANE_OK) s = open(*handle, error);
    if (s == FEEDLANE_OK) *out = handle.release();
    return s;
  });
}

}  // namespace

extern "C" {

int32_t feedlane_monitor_of(feedlane_loader* l, feedlane_monitor** out, feedlane_error* err) {
  return create(out, err, [&](feedlane_monitor& handle, Error& error) {
    const Status s = check_handle(l, "l", error);
    if (s != FEEDLANE_OK) return s;
    l->keep();
    handle.local = l;
    return s;
  });
}

int32_t feedlane_monitor_open(int64_t pid, int32_t nth, feedlane_monitor** out, feedlane_error* err) {
  return create(out, err, [&](feedlane_monitor& handle, Error& error) {
    return monitor::Monitor::open(pid, nth, handle.remote, error);
  });
}

int32_t feedlane_monitor_get_stats(const feedlane_monitor* m, feedlane_stats* out) {
  return call_any(m, "m", nullptr, [&](Error& error) {
    const Status s = check_output(out, "out", error);
    if (s == FEEDLANE_OK)
      write_versioned(out,
                      m->local != nullptr ? m->local->source->stats() : monitor::read_stats(m->remote->segments()));
    return s;
  });
}

int32_t feedlane_monitor_get_worker_stats(const feedlane_monitor* m, int32_t worker, feedlane_worker_stats* out) {
  return get(m, out, [=](const shm::Segments& segments, feedlane_worker_stats& value) {
    return monitor::read_worker_stats(segments, worker, value);
  });
}

int32_t feedlane_monitor_destroy(feedlane_monitor** m) {
  return destroy(m, [](feedlane_monitor*) { return Status{FEEDLANE_OK}; });
}

int32_t feedlane_loader_event(feedlane_loader* l, feedlane_event* out) {
  return call_any(l, "l", nullptr, [&](Error& error) {
    Status s = check_output(out, "out", error);
    feedlane_event event;
    if (s == FEEDLANE_OK && !l->source->next_event(event)) s = FEEDLANE_END;
    if (s == FEEDLANE_OK) write_versioned(out, event);
    return s;
  });
}

}  // extern "C"
