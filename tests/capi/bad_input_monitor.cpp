// SPDX-License-Identifier: Apache-2.0
// Bad input: a monitor. The process that it looks at is this one.
#include "bad_input.hpp"

using namespace feedlane::test;

namespace {

struct F {
  F() : loader(setup.create()) {}
  std::int64_t pid() { return ::getpid(); }
  feedlane_monitor* m() {
    if (monitor == nullptr) {
      feedlane_monitor* opened = nullptr;
      REQUIRE(feedlane_monitor_open(pid(), 0, &opened, nullptr) == FEEDLANE_OK);
      monitor.reset(opened);
    }
    return monitor.get();
  }
  feedlane_monitor** copy() {
    handle = monitor.release();
    return &handle;
  }
  feedlane_stats* stats_of(std::size_t size) { return &(stats = sized<feedlane_stats>(size)); }
  feedlane_worker_stats* worker_of(std::size_t size) { return &(worker = sized<feedlane_worker_stats>(size)); }
  [[nodiscard]] bool is_clean() const { return !out.is_poisoned(); }

  Setup setup{6, 2};
  Loader loader;
  std::unique_ptr<feedlane_monitor, DestroyAny> monitor;
  feedlane_monitor* handle = nullptr;
  feedlane_stats stats = fresh<feedlane_stats>();
  feedlane_worker_stats worker = fresh<feedlane_worker_stats>();
  Out<feedlane_monitor> out;
};

#define OPENING(what, status, argument, found, needed, ...) \
  REFUSES(feedlane_monitor_open, what, status, argument, found, needed, __VA_ARGS__, e)

const Row<F> rows[] = {
    OPENING("out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.pid(), 0, nullptr),
    OPENING("pid 0", FEEDLANE_E_ARGUMENT, "pid", 0, 1, 0, 0, f.out.place()),
    OPENING("pid -1", FEEDLANE_E_ARGUMENT, "pid", -1, 1, -1, 0, f.out.place()),
    OPENING("the least pid", FEEDLANE_E_ARGUMENT, "pid", INT64_MIN, 1, INT64_MIN, 0, f.out.place()),
    OPENING("beyond all pids", FEEDLANE_E_PEER_DEAD, "pid", INT32_MAX, 0, INT32_MAX, 0, f.out.place()),
    OPENING("beyond int32", FEEDLANE_E_PEER_DEAD, "pid", (INT64_C(1) << 32) + ::getpid(), 0,
            (INT64_C(1) << 32) + f.pid(), 0, f.out.place()),
    OPENING("the largest pid", FEEDLANE_E_PEER_DEAD, "pid", INT64_MAX, 0, INT64_MAX, 0, f.out.place()),
    OPENING("nth -1", FEEDLANE_E_ARGUMENT, "nth", -1, 0, f.pid(), -1, f.out.place()),
    OPENING("the least nth", FEEDLANE_E_ARGUMENT, "nth", INT32_MIN, 0, f.pid(), INT32_MIN, f.out.place()),
    OPENING("past the last loader", FEEDLANE_END, "", 0, 0, f.pid(), 1, f.out.place()),
    OPENING("the largest nth", FEEDLANE_END, "", 0, 0, f.pid(), INT32_MAX, f.out.place()),
    ANSWERS(feedlane_monitor_get_stats, "m NULL", FEEDLANE_E_ARGUMENT, nullptr, &f.stats),
    ANSWERS(feedlane_monitor_get_stats, "out NULL", FEEDLANE_E_ARGUMENT, f.m(), nullptr),
    ANSWERS(feedlane_monitor_get_stats, "out of size 0", FEEDLANE_E_ABI, f.m(), f.stats_of(0)),
    ANSWERS(feedlane_monitor_get_stats, "out of size 7", FEEDLANE_E_ABI, f.m(), f.stats_of(7)),
    ANSWERS(feedlane_monitor_get_stats, "size only", FEEDLANE_OK, f.m(), f.stats_of(8)),
    ANSWERS(feedlane_monitor_get_worker_stats, "m NULL", FEEDLANE_E_ARGUMENT, nullptr, 0, &f.worker),
    ANSWERS(feedlane_monitor_get_worker_stats, "out NULL", FEEDLANE_E_ARGUMENT, f.m(), 0, nullptr),
    ANSWERS(feedlane_monitor_get_worker_stats, "out of size 0", FEEDLANE_E_ABI, f.m(), 0, f.worker_of(0)),
    ANSWERS(feedlane_monitor_get_worker_stats, "worker -1", FEEDLANE_E_ARGUMENT, f.m(), -1, &f.worker),
    ANSWERS(feedlane_monitor_get_worker_stats, "the least worker", FEEDLANE_E_ARGUMENT, f.m(), INT32_MIN, &f.worker),
    ANSWERS(feedlane_monitor_get_worker_stats, "past the last worker", FEEDLANE_END, f.m(), 0, &f.worker),
    ANSWERS(feedlane_monitor_get_worker_stats, "the largest worker", FEEDLANE_END, f.m(), INT32_MAX, &f.worker),
    ANSWERS(feedlane_monitor_destroy, "NULL", FEEDLANE_OK, nullptr),
    ANSWERS(feedlane_monitor_destroy, "a NULL handle", FEEDLANE_OK, &f.handle),
    HOLDS(feedlane_monitor_destroy, "twice",
          f.m() != nullptr && feedlane_monitor_destroy(f.copy()) == FEEDLANE_OK && f.handle == nullptr &&
              feedlane_monitor_destroy(&f.handle) == FEEDLANE_OK),
};

const Row<F> forked_rows[] = {
    ANSWERS(feedlane_monitor_get_stats, "forked", FEEDLANE_E_FORKED, f.monitor.get(), &f.stats),
    ANSWERS(feedlane_monitor_get_worker_stats, "forked", FEEDLANE_E_FORKED, f.monitor.get(), 0, &f.worker),
    ANSWERS(feedlane_monitor_destroy, "forked", FEEDLANE_OK, f.copy()),
};

const Counted counted{rows}, counted_forked{forked_rows};

}  // namespace

TEST_CASE("bad input: a monitor") { check_rows(rows); }

TEST_CASE("bad input: a monitor in a forked child") {
  F f;
  (void)f.m();
  check_forked(f, forked_rows);
  CHECK(feedlane_monitor_get_stats(f.monitor.get(), &f.stats) == FEEDLANE_OK);
}
