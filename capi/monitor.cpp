// SPDX-License-Identifier: Apache-2.0
// feedlane/monitor.h: counters of loaders and workers, here and in other processes, and events.
#include "monitor.hpp"

#include "feedlane/monitor.h"
#include "handle.hpp"
#include "loader.hpp"

using namespace feedlane;
using namespace feedlane::capi;

extern "C" {

int32_t feedlane_loader_get_stats(const feedlane_loader* l, feedlane_stats* out) {
  return call_any(l, "l", nullptr, [&](Error& error) {
    const Status s = check_output(out, "out", error);
    if (s == FEEDLANE_OK) write_versioned(out, l->source->stats());
    return s;
  });
}

int32_t feedlane_loader_get_worker_stats(const feedlane_loader* l, int32_t worker, feedlane_worker_stats* out) {
  return call_any(l, "l", nullptr, [&](Error& error) {
    Status s = check_output(out, "out", error);
    feedlane_worker_stats stats;
    if (s == FEEDLANE_OK) s = check_loader(l, error);
    if (s == FEEDLANE_OK) s = monitor::read_worker_stats(l->loader->memory().segments, worker, stats);
    if (s == FEEDLANE_OK) write_versioned(out, stats);
    return s;
  });
}

int32_t feedlane_monitor_open(int64_t pid, int32_t nth, feedlane_monitor** out, feedlane_error* err) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    if (out == nullptr) return refuse_null(error, "out");
    auto handle = std::make_unique<feedlane_monitor>();
    Status s = handle->stamp.take(error);
    if (s == FEEDLANE_OK) s = monitor::Monitor::open(pid, nth, handle->monitor, error);
    if (s == FEEDLANE_OK) *out = handle.release();
    return s;
  });
}

int32_t feedlane_monitor_get_stats(const feedlane_monitor* m, feedlane_stats* out) {
  return call_any(m, "m", nullptr, [&](Error& error) {
    const Status s = check_output(out, "out", error);
    if (s == FEEDLANE_OK) write_versioned(out, m->monitor->stats());
    return s;
  });
}

int32_t feedlane_monitor_get_worker_stats(const feedlane_monitor* m, int32_t worker, feedlane_worker_stats* out) {
  return call_any(m, "m", nullptr, [&](Error& error) {
    Status s = check_output(out, "out", error);
    feedlane_worker_stats stats;
    if (s == FEEDLANE_OK) s = m->monitor->worker_stats(worker, stats);
    if (s == FEEDLANE_OK) write_versioned(out, stats);
    return s;
  });
}

int32_t feedlane_monitor_close(feedlane_monitor** m) {
  return destroy(m, [](feedlane_monitor*) { return Status{FEEDLANE_OK}; });
}

int32_t feedlane_monitor_ref(feedlane_monitor* m) { return ref(m); }
int32_t feedlane_monitor_unref(feedlane_monitor* m) { return unref(m); }

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
