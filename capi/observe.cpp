// SPDX-License-Identifier: Apache-2.0
// feedlane/observe.h: timings, the trace, errors, and what bounds a run, of a loader here and of one in another process.
#include "feedlane/observe.h"

#include <cstring>

#include "handle.hpp"
#include "loader.hpp"
#include "monitor.hpp"
#include "monitor/diagnosis.hpp"
#include "monitor/errors.hpp"
#include "monitor/records.hpp"
#include "monitor/report.hpp"
#include "monitor/rings.hpp"

using namespace feedlane;
using namespace feedlane::capi;

namespace {

const shm::Segments& segments_of(const feedlane_loader* l) { return l->loader->memory().segments; }
const shm::Segments& segments_of(const feedlane_monitor* m) { return m->monitor->segments(); }

Status check_observable(const feedlane_loader* l, Error& error) { return check_loader(l, error); }
Status check_observable(const feedlane_monitor*, Error&) { return FEEDLANE_OK; }

// `read(segments, value)` fills a struct of type T, which is written to the caller's.
template <class T, class H, class F>
int32_t get(H* handle, const char* name, T* out, F&& read) {
  return call_any(handle, name, nullptr, [&](Error& error) {
    Status s = check_output(out, "out", error);
    T value{};
    if (s == FEEDLANE_OK) s = check_observable(handle, error);
    if (s == FEEDLANE_OK) s = read(segments_of(handle), value);
    if (s == FEEDLANE_OK) write_versioned(out, value);
    return s;
  });
}

template <class H>
int32_t get_info(H* handle, const char* name, feedlane_loader_info* out) {
  return get(handle, name, out, [](const shm::Segments& segments, feedlane_loader_info& value) {
    value = monitor::read_info(segments);
    return Status{FEEDLANE_OK};
  });
}

template <class H>
int32_t get_timings(H* handle, const char* name, int32_t worker, feedlane_timings* out) {
  return get(handle, name, out, [=](const shm::Segments& segments, feedlane_timings& value) {
    return monitor::read_timings(segments, worker, value);
  });
}

template <class H>
int32_t get_slot(H* handle, const char* name, uint64_t slot, feedlane_batch_record* out) {
  return get(handle, name, out, [=](const shm::Segments& segments, feedlane_batch_record& value) {
    return monitor::read_slot(segments, slot, value);
  });
}

template <class H>
int32_t get_error(H* handle, const char* name, int32_t index, feedlane_error_record* out) {
  return get(handle, name, out, [=](const shm::Segments& segments, feedlane_error_record& value) {
    return monitor::read_error(segments, index, value);
  });
}

template <class H>
int32_t get_trace(H* handle, const char* name, uint64_t from, feedlane_batch_record* records, uint64_t cap,
                  uint64_t* count) {
  return call_any(handle, name, nullptr, [&](Error& error) {
    Status s = cap == 0 ? FEEDLANE_OK : check_output(records, "records", error);
    if (s == FEEDLANE_OK && count == nullptr) s = refuse_null(error, "count");
    if (s == FEEDLANE_OK && cap != 0 && records->size % struct_step != 0) s = FEEDLANE_E_ABI;
    if (s == FEEDLANE_OK) s = check_observable(handle, error);
    return s == FEEDLANE_OK ? monitor::read_trace(segments_of(handle), from, records, cap, *count) : s;
  });
}

}  // namespace

extern "C" {

int32_t feedlane_loader_get_info(const feedlane_loader* l, feedlane_loader_info* out) { return get_info(l, "l", out); }
int32_t feedlane_monitor_get_info(const feedlane_monitor* m, feedlane_loader_info* out) {
  return get_info(m, "m", out);
}

int32_t feedlane_loader_get_timings(const feedlane_loader* l, int32_t worker, feedlane_timings* out) {
  return get_timings(l, "l", worker, out);
}
int32_t feedlane_monitor_get_timings(const feedlane_monitor* m, int32_t worker, feedlane_timings* out) {
  return get_timings(m, "m", worker, out);
}

int32_t feedlane_loader_get_slot(const feedlane_loader* l, uint64_t slot, feedlane_batch_record* out) {
  return get_slot(l, "l", slot, out);
}
int32_t feedlane_monitor_get_slot(const feedlane_monitor* m, uint64_t slot, feedlane_batch_record* out) {
  return get_slot(m, "m", slot, out);
}

int32_t feedlane_loader_get_trace(const feedlane_loader* l, uint64_t from, feedlane_batch_record* records, uint64_t cap,
                                  uint64_t* count) {
  return get_trace(l, "l", from, records, cap, count);
}
int32_t feedlane_monitor_get_trace(const feedlane_monitor* m, uint64_t from, feedlane_batch_record* records,
                                   uint64_t cap, uint64_t* count) {
  return get_trace(m, "m", from, records, cap, count);
}

int32_t feedlane_loader_get_error(const feedlane_loader* l, int32_t index, feedlane_error_record* out) {
  return get_error(l, "l", index, out);
}
int32_t feedlane_monitor_get_error(const feedlane_monitor* m, int32_t index, feedlane_error_record* out) {
  return get_error(m, "m", index, out);
}

int32_t feedlane_loader_diagnose(const feedlane_loader* l, feedlane_diagnosis* out) {
  return call_any(l, "l", nullptr, [&](Error& error) {
    if (const Status s = check_output(out, "out", error); s != FEEDLANE_OK) return s;
    if (const Status s = check_loader(l, error); s != FEEDLANE_OK) return s;
    monitor::Snapshot before, after;
    l->loader->memory().figures.read(segments_of(l), before, after);
    write_versioned(out, monitor::diagnose(before, after));
    return Status{FEEDLANE_OK};
  });
}

int32_t feedlane_monitor_diagnose(feedlane_monitor* m, feedlane_diagnosis* out) {
  return call_any(m, "m", nullptr, [&](Error& error) {
    const Status s = check_output(out, "out", error);
    if (s == FEEDLANE_OK) write_versioned(out, m->monitor->diagnose());
    return s;
  });
}

int32_t feedlane_loader_report(const feedlane_loader* l, char* buffer, uint64_t cap, uint64_t* bytes,
                               feedlane_error* err) {
  return call_any(l, "l", err, [&](Error& error) -> Status {
    if (bytes == nullptr) return refuse_null(error, "bytes");
    if (buffer == nullptr && cap != 0) return refuse_null(error, "buffer");
    if (const Status s = check_loader(l, error); s != FEEDLANE_OK) return s;
    monitor::Snapshot before, after;
    l->loader->memory().figures.read(segments_of(l), before, after);
    const std::string text = monitor::report(before, after, segments_of(l));
    *bytes = text.size();
    if (cap < text.size())
      return error.refuse(FEEDLANE_E_LIMIT, "cap", static_cast<std::int64_t>(cap), text.size(),
                          "the report takes {} bytes, there is room for {}", text.size(), cap);
    if (buffer != nullptr) std::memcpy(buffer, text.data(), text.size());
    if (cap > text.size()) buffer[text.size()] = '\0';
    return FEEDLANE_OK;
  });
}

int32_t feedlane_monitor_ring(int64_t pid, int32_t nth, feedlane_ring_info* out, feedlane_error* err) {
  return call(err, [&](Error& error) {
    Status s = check_output(out, "out", error);
    feedlane_ring_info info{};
    if (s == FEEDLANE_OK) s = monitor::read_ring(pid, nth, info, error);
    if (s == FEEDLANE_OK) write_versioned(out, info);
    return s;
  });
}

}  // extern "C"
