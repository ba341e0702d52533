// SPDX-License-Identifier: Apache-2.0
// Bad input: what observes a loader, by its own handle and by a monitor's. The process looked at is this one.
#include "bad_input.hpp"

using namespace feedlane::test;

namespace {

struct F {
  F() {
    setup.config.trace = 4;
    loader = setup.create();
  }
  feedlane_loader* l() { return loader.get(); }
  // Without a trace.
  feedlane_loader* plain() {
    other = Setup(2).create();
    return other.get();
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
  [[nodiscard]] static bool is_clean() { return true; }

  Setup setup{6, 2};
  Loader loader, other;
  std::unique_ptr<feedlane_monitor, DestroyAny> monitor;
  feedlane_loader* held_by = nullptr;
  std::uint64_t token = 0;
  feedlane_loader_info info = fresh<feedlane_loader_info>();
  feedlane_timings timings = fresh<feedlane_timings>();
  feedlane_batch_record record = fresh<feedlane_batch_record>();
  feedlane_error_record error = fresh<feedlane_error_record>();
  feedlane_diagnosis diagnosis = fresh<feedlane_diagnosis>();
  feedlane_ring_info ring = fresh<feedlane_ring_info>();
  std::uint64_t count = 0;
  char text[16] = {};
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
    OUTPUT(feedlane_loader_get_info, l, info),
    ANSWERS(feedlane_loader_get_info, "destroyed", FEEDLANE_E_STATE, f.gone(), &f.info),
    OUTPUT(feedlane_monitor_get_info, m, info),
    OUTPUT(feedlane_loader_get_timings, l, timings, -1),
    ANSWERS(feedlane_loader_get_timings, "worker -2", FEEDLANE_E_ARGUMENT, f.l(), -2, &f.timings),
    ANSWERS(feedlane_loader_get_timings, "past the last worker", FEEDLANE_END, f.l(), 0, &f.timings),
    ANSWERS(feedlane_loader_get_timings, "the least worker", FEEDLANE_E_ARGUMENT, f.l(), INT32_MIN, &f.timings),
    ANSWERS(feedlane_loader_get_timings, "the largest worker", FEEDLANE_END, f.l(), INT32_MAX, &f.timings),
    OUTPUT(feedlane_monitor_get_timings, m, timings, -1),
    ANSWERS(feedlane_monitor_get_timings, "the largest worker", FEEDLANE_END, f.m(), INT32_MAX, &f.timings),
    OUTPUT(feedlane_loader_get_slot, l, record, 0),
    ANSWERS(feedlane_loader_get_slot, "the largest slot", FEEDLANE_END, f.l(), UINT64_MAX, &f.record),
    OUTPUT(feedlane_monitor_get_slot, m, record, 0),
    ANSWERS(feedlane_monitor_get_slot, "the largest slot", FEEDLANE_END, f.m(), UINT64_MAX, &f.record),
    ANSWERS(feedlane_loader_get_trace, "l NULL", FEEDLANE_E_ARGUMENT, nullptr, 0, &f.record, 1, &f.count),
    ANSWERS(feedlane_loader_get_trace, "records NULL", FEEDLANE_E_ARGUMENT, f.l(), 0, nullptr, 1, &f.count),
    ANSWERS(feedlane_loader_get_trace, "records of size 0", FEEDLANE_E_ABI, f.l(), 0, of_size(f.record, 0), 1,
            &f.count),
    ANSWERS(feedlane_loader_get_trace, "count NULL", FEEDLANE_E_ARGUMENT, f.l(), 0, &f.record, 1, nullptr),
    ANSWERS(feedlane_loader_get_trace, "no room", FEEDLANE_END, f.l(), 0, nullptr, 0, &f.count),
    ANSWERS(feedlane_loader_get_trace, "nothing yet", FEEDLANE_END, f.l(), UINT64_MAX, &f.record, 1, &f.count),
    ANSWERS(feedlane_loader_get_trace, "no trace", FEEDLANE_E_STATE, f.plain(), 0, &f.record, 1, &f.count),
    ANSWERS(feedlane_monitor_get_trace, "m NULL", FEEDLANE_E_ARGUMENT, nullptr, 0, &f.record, 1, &f.count),
    ANSWERS(feedlane_monitor_get_trace, "count NULL", FEEDLANE_E_ARGUMENT, f.m(), 0, &f.record, 1, nullptr),
    ANSWERS(feedlane_monitor_get_trace, "nothing yet", FEEDLANE_END, f.m(), 0, &f.record, 1, &f.count),
    ANSWERS(feedlane_loader_get_error, "l NULL", FEEDLANE_E_ARGUMENT, nullptr, 0, &f.error),
    ANSWERS(feedlane_loader_get_error, "out NULL", FEEDLANE_E_ARGUMENT, f.l(), 0, nullptr),
    ANSWERS(feedlane_loader_get_error, "index -1", FEEDLANE_E_ARGUMENT, f.l(), -1, &f.error),
    ANSWERS(feedlane_loader_get_error, "past the last", FEEDLANE_END, f.l(), 0, &f.error),
    ANSWERS(feedlane_loader_get_error, "the largest", FEEDLANE_END, f.l(), INT32_MAX, &f.error),
    ANSWERS(feedlane_monitor_get_error, "m NULL", FEEDLANE_E_ARGUMENT, nullptr, 0, &f.error),
    ANSWERS(feedlane_monitor_get_error, "the least", FEEDLANE_E_ARGUMENT, f.m(), INT32_MIN, &f.error),
    ANSWERS(feedlane_monitor_get_error, "past the last", FEEDLANE_END, f.m(), 0, &f.error),
    OUTPUT(feedlane_loader_diagnose, l, diagnosis),
    ANSWERS(feedlane_loader_diagnose, "destroyed", FEEDLANE_E_STATE, f.gone(), &f.diagnosis),
    OUTPUT(feedlane_monitor_diagnose, m, diagnosis),
    ANSWERS(feedlane_loader_report, "l NULL", FEEDLANE_E_ARGUMENT, nullptr, f.text, sizeof f.text, &f.count, e),
    REFUSES(feedlane_loader_report, "bytes NULL", FEEDLANE_E_ARGUMENT, "bytes", 0, 1, f.l(), f.text, sizeof f.text,
            nullptr, e),
    REFUSES(feedlane_loader_report, "buffer NULL", FEEDLANE_E_ARGUMENT, "buffer", 0, 1, f.l(), nullptr, 1, &f.count, e),
    ANSWERS(feedlane_loader_report, "no room", FEEDLANE_E_LIMIT, f.l(), f.text, sizeof f.text, &f.count, e),
    REFUSES(feedlane_monitor_ring, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, ::getpid(), 0, nullptr, e),
    REFUSES(feedlane_monitor_ring, "nth -1", FEEDLANE_E_ARGUMENT, "nth", -1, 0, ::getpid(), -1, &f.ring, e),
    REFUSES(feedlane_monitor_ring, "pid 0", FEEDLANE_E_ARGUMENT, "pid", 0, 1, 0, 0, &f.ring, e),
    REFUSES(feedlane_monitor_ring, "beyond all pids", FEEDLANE_E_PEER_DEAD, "pid", INT32_MAX, 0, INT32_MAX, 0, &f.ring,
            e),
    ANSWERS(feedlane_monitor_ring, "past the last ring", FEEDLANE_END, ::getpid(), 0, &f.ring, e),
};

const Row<F> forked_rows[] = {
    ANSWERS(feedlane_loader_get_info, "forked", FEEDLANE_E_FORKED, f.l(), &f.info),
    ANSWERS(feedlane_loader_get_timings, "forked", FEEDLANE_E_FORKED, f.l(), -1, &f.timings),
    ANSWERS(feedlane_loader_get_slot, "forked", FEEDLANE_E_FORKED, f.l(), 0, &f.record),
    ANSWERS(feedlane_loader_get_trace, "forked", FEEDLANE_E_FORKED, f.l(), 0, &f.record, 1, &f.count),
    ANSWERS(feedlane_loader_get_error, "forked", FEEDLANE_E_FORKED, f.l(), 0, &f.error),
    ANSWERS(feedlane_loader_diagnose, "forked", FEEDLANE_E_FORKED, f.l(), &f.diagnosis),
    ANSWERS(feedlane_loader_report, "forked", FEEDLANE_E_FORKED, f.l(), nullptr, 0, &f.count, nullptr),
    ANSWERS(feedlane_monitor_get_info, "forked", FEEDLANE_E_FORKED, f.monitor.get(), &f.info),
    ANSWERS(feedlane_monitor_get_timings, "forked", FEEDLANE_E_FORKED, f.monitor.get(), -1, &f.timings),
    ANSWERS(feedlane_monitor_get_slot, "forked", FEEDLANE_E_FORKED, f.monitor.get(), 0, &f.record),
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
  check_forked(f, forked_rows);
  CHECK(feedlane_loader_get_info(f.l(), &f.info) == FEEDLANE_OK);
}
