// SPDX-License-Identifier: Apache-2.0
// Bad input: what a monitor reads of a loader, opened by its handle (own) and by the process, this one (m).
#include "bad_input.hpp"

using namespace feedlane::test;

namespace {

struct F {
  F() {
    setup.config.trace = 4;
    loader = setup.create();
  }
  feedlane_loader* l() { return loader.get(); }
  feedlane_monitor* own() {
    if (local == nullptr) local = monitor_of(l());
    return local.get();
  }
  // Without a trace.
  feedlane_monitor* own_plain() {
    other = Setup(2).create();
    local = monitor_of(other.get());
    return local.get();
  }
  feedlane_monitor* m() {
    if (monitor == nullptr) {
      feedlane_monitor* opened = nullptr;
      REQUIRE(feedlane_monitor_open(::getpid(), 0, &opened, nullptr) == FEEDLANE_OK);
      monitor.reset(opened);
    }
    return monitor.get();
  }
  // Destroyed while a batch is in hand.
  feedlane_loader* gone() {
    feedlane_loader* const handle = loader.get();
    REQUIRE(feedlane_loader_begin(handle, 0, nullptr) == FEEDLANE_OK);
    auto batch = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(handle, patience_ns, &batch, nullptr) == FEEDLANE_OK);
    token = batch.token;
    feedlane_loader* copy = loader.release();
    REQUIRE(feedlane_loader_destroy(&copy) == FEEDLANE_OK);
    return held_by = handle;
  }
  ~F() {
    if (held_by != nullptr) (void)feedlane_batch_release(held_by, token);
  }
  F(const F&) = delete;
  F& operator=(const F&) = delete;
  [[nodiscard]] bool is_clean() const { return !out.is_poisoned(); }

  Setup setup{6, 2};
  Loader loader, other;
  MonitorHandle local;
  std::unique_ptr<feedlane_monitor, DestroyAny> monitor;
  feedlane_loader* held_by = nullptr;
  std::uint64_t token = 0;
  feedlane_loader_info info = fresh<feedlane_loader_info>();
  feedlane_timings timings = fresh<feedlane_timings>();
  feedlane_batch_record record = fresh<feedlane_batch_record>();
  feedlane_error_record error = fresh<feedlane_error_record>();
  feedlane_diagnosis diagnosis = fresh<feedlane_diagnosis>();
  feedlane_ring_info ring = fresh<feedlane_ring_info>();
  feedlane_arena_stats arena = fresh<feedlane_arena_stats>();
  std::uint64_t count = 0;
  char text[16] = {};
  Out<feedlane_monitor> out;
};

template <class T>
T* of_size(T& object, std::size_t size) {
  object.size = size;
  return &object;
}

// The four ways in which each function of either handle refuses its output struct and its handle.
#define OUTPUT(function, handle, out, ...)                                                                          \
  ANSWERS(function, "handle NULL", FEEDLANE_E_ARGUMENT, nullptr __VA_OPT__(, ) __VA_ARGS__, &f.out),                \
      ANSWERS(function, "out NULL", FEEDLANE_E_ARGUMENT, f.handle() __VA_OPT__(, ) __VA_ARGS__, nullptr),           \
      ANSWERS(function, "out of size 0", FEEDLANE_E_ABI, f.handle() __VA_OPT__(, ) __VA_ARGS__, of_size(f.out, 0)), \
      ANSWERS(function, "size only", FEEDLANE_OK, f.handle() __VA_OPT__(, ) __VA_ARGS__, of_size(f.out, 8))

const Row<F> rows[] = {
    REFUSES(feedlane_monitor_of, "l NULL", FEEDLANE_E_ARGUMENT, "l", 0, 1, nullptr, f.out.place(), e),
    REFUSES(feedlane_monitor_of, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.l(), nullptr, e),
    REFUSES(feedlane_monitor_of, "destroyed", FEEDLANE_E_STATE, "", 0, 0, f.gone(), f.out.place(), e),
    OUTPUT(feedlane_monitor_get_info, own, info),
    OUTPUT(feedlane_monitor_get_info, m, info),
    OUTPUT(feedlane_monitor_get_timings, own, timings, -1),
    ANSWERS(feedlane_monitor_get_timings, "worker -2", FEEDLANE_E_ARGUMENT, f.own(), -2, &f.timings),
    ANSWERS(feedlane_monitor_get_timings, "past the last worker", FEEDLANE_END, f.own(), 0, &f.timings),
    ANSWERS(feedlane_monitor_get_timings, "the least worker", FEEDLANE_E_ARGUMENT, f.own(), INT32_MIN, &f.timings),
    ANSWERS(feedlane_monitor_get_timings, "the largest worker", FEEDLANE_END, f.own(), INT32_MAX, &f.timings),
    OUTPUT(feedlane_monitor_get_timings, m, timings, -1),
    ANSWERS(feedlane_monitor_get_timings, "the largest worker", FEEDLANE_END, f.m(), INT32_MAX, &f.timings),
    ANSWERS(feedlane_monitor_get_trace, "m NULL", FEEDLANE_E_ARGUMENT, nullptr, 0, &f.record, 1, &f.count),
    ANSWERS(feedlane_monitor_get_trace, "records NULL", FEEDLANE_E_ARGUMENT, f.own(), 0, nullptr, 1, &f.count),
    ANSWERS(feedlane_monitor_get_trace, "records of size 0", FEEDLANE_E_ABI, f.own(), 0, of_size(f.record, 0), 1,
            &f.count),
    ANSWERS(feedlane_monitor_get_trace, "slots, no room", FEEDLANE_END, f.own_plain(), FEEDLANE_SLOTS, nullptr, 0,
            &f.count),
    ANSWERS(feedlane_monitor_get_trace, "slots, no trace", FEEDLANE_OK, f.own_plain(), FEEDLANE_SLOTS, &f.record, 1,
            &f.count),
    ANSWERS(feedlane_monitor_get_trace, "slots of size 0", FEEDLANE_E_ABI, f.own(), FEEDLANE_SLOTS,
            of_size(f.record, 0), 1, &f.count),
    ANSWERS(feedlane_monitor_get_trace, "count NULL", FEEDLANE_E_ARGUMENT, f.own(), 0, &f.record, 1, nullptr),
    ANSWERS(feedlane_monitor_get_trace, "no room", FEEDLANE_END, f.own(), 0, nullptr, 0, &f.count),
    ANSWERS(feedlane_monitor_get_trace, "nothing yet", FEEDLANE_END, f.own(), UINT64_MAX - 1, &f.record, 1, &f.count),
    ANSWERS(feedlane_monitor_get_trace, "no trace", FEEDLANE_E_STATE, f.own_plain(), 0, &f.record, 1, &f.count),
    ANSWERS(feedlane_monitor_get_trace, "count NULL", FEEDLANE_E_ARGUMENT, f.m(), 0, &f.record, 1, nullptr),
    ANSWERS(feedlane_monitor_get_trace, "nothing yet", FEEDLANE_END, f.m(), 0, &f.record, 1, &f.count),
    ANSWERS(feedlane_monitor_get_error, "m NULL", FEEDLANE_E_ARGUMENT, nullptr, 0, &f.error),
    ANSWERS(feedlane_monitor_get_error, "out NULL", FEEDLANE_E_ARGUMENT, f.own(), 0, nullptr),
    ANSWERS(feedlane_monitor_get_error, "index -1", FEEDLANE_E_ARGUMENT, f.own(), -1, &f.error),
    ANSWERS(feedlane_monitor_get_error, "past the last", FEEDLANE_END, f.own(), 0, &f.error),
    ANSWERS(feedlane_monitor_get_error, "the largest", FEEDLANE_END, f.own(), INT32_MAX, &f.error),
    ANSWERS(feedlane_monitor_get_error, "the least", FEEDLANE_E_ARGUMENT, f.m(), INT32_MIN, &f.error),
    ANSWERS(feedlane_monitor_get_error, "past the last", FEEDLANE_END, f.m(), 0, &f.error),
    OUTPUT(feedlane_monitor_diagnose, own, diagnosis),
    OUTPUT(feedlane_monitor_diagnose, m, diagnosis),
    ANSWERS(feedlane_monitor_report, "m NULL", FEEDLANE_E_ARGUMENT, nullptr, f.text, sizeof f.text, &f.count, e),
    REFUSES(feedlane_monitor_report, "bytes NULL", FEEDLANE_E_ARGUMENT, "bytes", 0, 1, f.own(), f.text, sizeof f.text,
            nullptr, e),
    REFUSES(feedlane_monitor_report, "buffer NULL", FEEDLANE_E_ARGUMENT, "buffer", 0, 1, f.own(), nullptr, 1, &f.count,
            e),
    ANSWERS(feedlane_monitor_report, "no room", FEEDLANE_E_LIMIT, f.own(), f.text, sizeof f.text, &f.count, e),
    REFUSES(feedlane_monitor_ring, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, ::getpid(), 0, nullptr, e),
    REFUSES(feedlane_monitor_ring, "nth -1", FEEDLANE_E_ARGUMENT, "nth", -1, 0, ::getpid(), -1, &f.ring, e),
    REFUSES(feedlane_monitor_ring, "pid 0", FEEDLANE_E_ARGUMENT, "pid", 0, 1, 0, 0, &f.ring, e),
    REFUSES(feedlane_monitor_ring, "beyond all pids", FEEDLANE_E_PEER_DEAD, "pid", INT32_MAX, 0, INT32_MAX, 0, &f.ring,
            e),
    REFUSES(feedlane_monitor_arena, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, ::getpid(), 0, nullptr, nullptr, 0,
            &f.count, e),
    REFUSES(feedlane_monitor_arena, "members NULL", FEEDLANE_E_ARGUMENT, "members", 0, 1, ::getpid(), 0, &f.arena,
            nullptr, 1, &f.count, e),
    REFUSES(feedlane_monitor_arena, "count NULL", FEEDLANE_E_ARGUMENT, "count", 0, 1, ::getpid(), 0, &f.arena, nullptr, 0,
            nullptr, e),
    REFUSES(feedlane_monitor_arena, "nth -1", FEEDLANE_E_ARGUMENT, "nth", -1, 0, ::getpid(), -1, &f.arena, nullptr, 0,
            &f.count, e),
    REFUSES(feedlane_monitor_arena, "pid 0", FEEDLANE_E_ARGUMENT, "pid", 0, 1, 0, 0, &f.arena, nullptr, 0, &f.count, e),
    ANSWERS(feedlane_monitor_arena, "past the last arena", FEEDLANE_END, ::getpid(), 0, &f.arena, nullptr, 0, &f.count,
            e),
    ANSWERS(feedlane_monitor_ring, "past the last ring", FEEDLANE_END, ::getpid(), 0, &f.ring, e),
};

const Row<F> forked_rows[] = {
    ANSWERS(feedlane_monitor_of, "forked", FEEDLANE_E_FORKED, f.l(), f.out.place(), nullptr),
    ANSWERS(feedlane_monitor_get_info, "forked", FEEDLANE_E_FORKED, f.local.get(), &f.info),
    ANSWERS(feedlane_monitor_get_timings, "forked", FEEDLANE_E_FORKED, f.local.get(), -1, &f.timings),
    ANSWERS(feedlane_monitor_get_trace, "forked", FEEDLANE_E_FORKED, f.local.get(), 0, &f.record, 1, &f.count),
    ANSWERS(feedlane_monitor_get_error, "forked", FEEDLANE_E_FORKED, f.local.get(), 0, &f.error),
    ANSWERS(feedlane_monitor_diagnose, "forked", FEEDLANE_E_FORKED, f.local.get(), &f.diagnosis),
    ANSWERS(feedlane_monitor_report, "forked", FEEDLANE_E_FORKED, f.local.get(), nullptr, 0, &f.count, nullptr),
    ANSWERS(feedlane_monitor_get_info, "forked", FEEDLANE_E_FORKED, f.monitor.get(), &f.info),
    ANSWERS(feedlane_monitor_get_timings, "forked", FEEDLANE_E_FORKED, f.monitor.get(), -1, &f.timings),
    ANSWERS(feedlane_monitor_get_trace, "forked", FEEDLANE_E_FORKED, f.monitor.get(), 0, &f.record, 1, &f.count),
    ANSWERS(feedlane_monitor_get_error, "forked", FEEDLANE_E_FORKED, f.monitor.get(), 0, &f.error),
    ANSWERS(feedlane_monitor_diagnose, "forked", FEEDLANE_E_FORKED, f.monitor.get(), &f.diagnosis),
};

const Counted counted{rows}, counted_forked{forked_rows};

}  // namespace

TEST_CASE("bad input: observing") { check_rows(rows); }

TEST_CASE("bad input: observing in a forked child") {
  F f;
  (void)f.m();
  (void)f.own();
  check_forked(f, forked_rows);
  CHECK(observe(f.l(), feedlane_monitor_get_info, &f.info) == FEEDLANE_OK);
}
