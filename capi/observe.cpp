// SPDX-License-Identifier: Apache-2.0
// feedlane/observe.h: facts, timings, the trace, errors, and the bottleneck of a run.
#include "feedlane/observe.h"

#include <cstring>

#include "monitor.hpp"
#include "monitor/arenas.hpp"
#include "monitor/diagnosis.hpp"
#include "monitor/errors.hpp"
#include "monitor/records.hpp"
#include "monitor/report.hpp"
#include "monitor/rings.hpp"

using namespace feedlane;
using namespace feedlane::capi;

namespace {

// Reads the figures at the beginning and the end of the interval that feedlane_monitor_diagnose covers. `advances`: the
// next interval of a monitor of another process begins here.
void read_interval(feedlane_monitor& m, const shm::Segments& segments, bool advances, monitor::Snapshot& before,
                   monitor::Snapshot& after) {
  if (m.local != nullptr) m.local->loader->figures().read(segments, before, after);
  else m.remote->read(before, after, advances);
}

}  // namespace

extern "C" {

int32_t feedlane_monitor_get_info(const feedlane_monitor* m, feedlane_loader_info* out) {
  return call_any(m, "m", nullptr, [&](Error& error) {
    const Status s = check_output(out, "out", error);
    if (s == FEEDLANE_OK)
      write_versioned(out, m->local != nullptr ? m->local->source->info() : monitor::read_info(m->remote->segments()));
    return s;
  });
}

int32_t feedlane_monitor_get_timings(const feedlane_monitor* m, int32_t worker, feedlane_timings* out) {
  return get(m, out, [=](const shm::Segments& segments, feedlane_timings& value) {
    return monitor::read_timings(segments, worker, value);
  });
}

int32_t feedlane_monitor_get_error(const feedlane_monitor* m, int32_t index, feedlane_error_record* out) {
  return get(m, out, [=](const shm::Segments& segments, feedlane_error_record& value) {
    return monitor::read_error(segments, index, value);
  });
}

int32_t feedlane_monitor_get_trace(const feedlane_monitor* m, uint64_t from, feedlane_batch_record* records,
                                   uint64_t cap, uint64_t* count) {
  return call_any(m, "m", nullptr, [&](Error& error) {
    Status s = cap == 0 ? FEEDLANE_OK : check_output(records, "records", error);
    if (s == FEEDLANE_OK && count == nullptr) s = refuse_null(error, "count");
    if (s == FEEDLANE_OK && cap != 0 && records->size % struct_step != 0) s = FEEDLANE_E_ABI;
    const shm::Segments* segments = nullptr;
    if (s == FEEDLANE_OK) s = find_segments(m, segments, error);
    if (s != FEEDLANE_OK) return s;
    return from == FEEDLANE_SLOTS ? monitor::read_slots(*segments, records, cap, *count)
                                  : monitor::read_trace(*segments, from, records, cap, *count);
  });
}

int32_t feedlane_monitor_diagnose(feedlane_monitor* m, feedlane_diagnosis* out) {
  return get(m, out, [=](const shm::Segments& segments, feedlane_diagnosis& value) {
    monitor::Snapshot before, after;
    read_interval(*m, segments, true, before, after);
    value = monitor::diagnose(before, after);
    return Status{FEEDLANE_OK};
  });
}

int32_t feedlane_monitor_report(feedlane_monitor* m, char* buffer, uint64_t cap, uint64_t* bytes, feedlane_error* err) {
  return call_any(m, "m", err, [&](Error& error) -> Status {
    if (bytes == nullptr) return refuse_null(error, "bytes");
    if (buffer == nullptr && cap != 0) return refuse_null(error, "buffer");
    monitor::Snapshot before, after;
    const shm::Segments* segments = nullptr;
    if (const Status s = find_segments(m, segments, error); s != FEEDLANE_OK) return s;
    read_interval(*m, *segments, false, before, after);
    const std::string text = monitor::report(before, after, *segments);
    *bytes = text.size();
    if (cap < text.size())
      return error.refuse(FEEDLANE_E_LIMIT, "cap", static_cast<std::int64_t>(cap), text.size(),
                          "the report has {} bytes, but cap is only {}", text.size(), cap);
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

int32_t feedlane_monitor_arena(int64_t pid, int32_t nth, feedlane_arena_stats* out, feedlane_arena_member* members,
                               uint64_t cap, uint64_t* count, feedlane_error* err) {
  return call(err, [&](Error& error) {
    Status s = check_output(out, "out", error);
    if (s == FEEDLANE_OK && cap != 0) s = check_output(members, "members", error);
    if (s == FEEDLANE_OK && count == nullptr) s = refuse_null(error, "count");
    if (s == FEEDLANE_OK && cap != 0 && members->size % struct_step != 0) s = FEEDLANE_E_ABI;
    feedlane_arena_stats stats{};
    std::vector<feedlane_arena_member> all;
    if (s == FEEDLANE_OK) s = monitor::read_arena(pid, nth, stats, all, error);
    if (s != FEEDLANE_OK) return s;
    const std::size_t step = cap == 0 ? 0 : members->size;
    auto* to = reinterpret_cast<std::byte*>(members);
    for (std::size_t i = 0; i < all.size() && i < cap; i++, to += step) {
      all[i].size = std::min(step, sizeof all[i]);
      std::memcpy(to, &all[i], all[i].size);
      reinterpret_cast<feedlane_arena_member*>(to)->size = step;
    }
    *count = all.size();
    write_versioned(out, stats);
    return s;
  });
}

}  // extern "C"
