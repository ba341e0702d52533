// SPDX-License-Identifier: Apache-2.0
// Bad input: the worker's side, once it has attached. Here workers are threads of the trainer.
#include "bad_input.hpp"

using namespace feedlane::test;

namespace {

struct F {
  F() {
    setup.external(1).config.start = FEEDLANE_START_THREAD;
    loader = setup.create();
    feedlane_worker* made = nullptr;
    REQUIRE(feedlane_worker_attach(-1, loader.get(), FEEDLANE_FOREVER, &made, nullptr) == FEEDLANE_OK);
    worker.reset(made);
  }
  feedlane_worker* w() { return worker.get(); }
  feedlane_worker* ready() {
    if (!is_ready) REQUIRE(feedlane_worker_ready(w(), 0, nullptr, nullptr) == FEEDLANE_OK);
    is_ready = true;
    return w();
  }
  feedlane_worker* unfit() {
    REQUIRE(feedlane_worker_ready(w(), FEEDLANE_E_INIT, "no data set", nullptr) == FEEDLANE_OK);
    return w();
  }
  // Two rows are wanted.
  const feedlane_task* task() {
    if (in_hand != nullptr) return in_hand;
    (void)ready();
    REQUIRE(feedlane_loader_begin(loader.get(), 0, nullptr) == FEEDLANE_OK);
    REQUIRE(eventually([this] {
      (void)feedlane_loader_poll(loader.get(), nullptr);
      return feedlane_worker_next(w(), 0, &in_hand, nullptr) == FEEDLANE_OK;
    }));
    return in_hand;
  }
  feedlane_worker* working() {
    (void)task();
    return w();
  }
  const feedlane_task* committed() {
    REQUIRE(feedlane_task_commit(task(), 2, nullptr) == FEEDLANE_OK);
    return in_hand;
  }
  const feedlane_task* failed() {
    REQUIRE(feedlane_task_fail(task(), 0, 0, nullptr, nullptr, nullptr) == FEEDLANE_OK);
    return in_hand;
  }
  const feedlane_task* abandoned() {
    (void)task();
    REQUIRE(feedlane_loader_begin(loader.get(), 1, nullptr) == FEEDLANE_OK);
    return in_hand;
  }
  // The caller's copy of a task, and a task without a worker.
  const feedlane_task* copied() { return &(other = *task()); }
  const feedlane_task* inline_task() { return &(other = fresh<feedlane_task>()); }
  const feedlane_field* shape(std::initializer_list<std::int64_t> dimensions,
                              std::size_t size = sizeof(feedlane_field)) {
    full = fresh<feedlane_field>();
    full.size = size;
    full.dtype = {0, 64, 1};
    for (const std::int64_t d : dimensions) full.shape[full.ndim++] = d;
    return &full;
  }
  const feedlane_field* shape_of(std::int32_t ndim) {
    full = fresh<feedlane_field>();
    full.ndim = ndim;
    return &full;
  }
  feedlane_worker_info* info_of(std::size_t size) { return &(info = sized<feedlane_worker_info>(size)); }
  feedlane_error* failure_of(std::size_t size) { return &(failure = sized<feedlane_error>(size)); }
  feedlane_ahead* ahead_of(std::size_t size) { return &(ahead = sized<feedlane_ahead>(size)); }
  feedlane_worker** copy(feedlane_worker* of) {
    handle = of;
    return &handle;
  }
  [[nodiscard]] bool is_clean() const { return true; }

  Setup setup{6, 2};
  Loader loader;
  Worker worker;
  bool is_ready = false;
  feedlane_worker* handle = nullptr;
  const feedlane_task* in_hand = nullptr;
  const feedlane_task* place = nullptr;
  feedlane_task other = fresh<feedlane_task>();
  feedlane_worker_info info = fresh<feedlane_worker_info>();
  feedlane_ahead ahead = fresh<feedlane_ahead>();
  feedlane_error failure = fresh<feedlane_error>();
  std::int64_t index = 0;
  std::int64_t wait_ns = 0;
  feedlane_field full = fresh<feedlane_field>();
  static constexpr std::int64_t slot_bytes = 512 + (64 << 10);
};

const std::string long_text(1 << 20, 'x');

const Row<F> rows[] = {
    ANSWERS(feedlane_worker_get_info, "w NULL", FEEDLANE_E_ARGUMENT, nullptr, &f.info),
    ANSWERS(feedlane_worker_get_info, "info NULL", FEEDLANE_E_ARGUMENT, f.w(), nullptr),
    ANSWERS(feedlane_worker_get_info, "info of size 0", FEEDLANE_E_ABI, f.w(), f.info_of(0)),
    ANSWERS(feedlane_worker_get_info, "info of size 7", FEEDLANE_E_ABI, f.w(), f.info_of(7)),
    REFUSES(feedlane_worker_ready, "w NULL", FEEDLANE_E_ARGUMENT, "w", 0, 1, nullptr, 0, nullptr, e),
    REFUSES(feedlane_worker_ready, "status 1", FEEDLANE_E_ARGUMENT, "status", 1, 0, f.w(), 1, nullptr, e),
    REFUSES(feedlane_worker_ready, "the largest status", FEEDLANE_E_ARGUMENT, "status", INT32_MAX, 0, f.w(), INT32_MAX,
            nullptr, e),
    REFUSES(feedlane_worker_ready, "twice", FEEDLANE_E_STATE, "", 0, 0, f.ready(), 0, nullptr, e),
    REFUSES(feedlane_worker_ready, "after it couldn't", FEEDLANE_E_STATE, "", 0, 0, f.unfit(), 0, nullptr, e),
    REFUSES(feedlane_worker_ready, "the least status, a long text", FEEDLANE_OK, "", 0, 0, f.w(), INT32_MIN,
            long_text.c_str(), e),
    REFUSES(feedlane_worker_next, "w NULL", FEEDLANE_E_ARGUMENT, "w", 0, 1, nullptr, 0, &f.place, e),
    REFUSES(feedlane_worker_next, "task NULL", FEEDLANE_E_ARGUMENT, "task", 0, 1, f.ready(), 0, nullptr, e),
    REFUSES(feedlane_worker_next, "timeout -1", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.ready(), -1, &f.place, e),
    REFUSES(feedlane_worker_next, "the least timeout", FEEDLANE_E_ARGUMENT, "timeout_ns", INT64_MIN, 0, f.ready(),
            INT64_MIN, &f.place, e),
    REFUSES(feedlane_worker_next, "before ready", FEEDLANE_E_STATE, "", 0, 0, f.w(), FEEDLANE_FOREVER, &f.place, e),
    REFUSES(feedlane_worker_next, "with a task in hand", FEEDLANE_E_STATE, "", 0, 0, f.working(), 0, &f.place, e),
    REFUSES(feedlane_worker_next, "nothing to do", FEEDLANE_TIMEOUT, "", 0, 0, f.ready(), 0, &f.place, e),
    REFUSES(feedlane_worker_next, "after it couldn't", FEEDLANE_END, "", 0, 0, f.unfit(), FEEDLANE_FOREVER, &f.place,
            e),
    ANSWERS(feedlane_worker_check, "w NULL", FEEDLANE_E_ARGUMENT, nullptr),
    ANSWERS(feedlane_worker_check, "before ready", FEEDLANE_OK, f.w()),
    ANSWERS(feedlane_worker_arm, "w NULL", FEEDLANE_E_ARGUMENT, nullptr, nullptr),
    ANSWERS(feedlane_worker_arm, "before ready", FEEDLANE_OK, f.w(), nullptr),
    ANSWERS(feedlane_worker_arm, "with a task in hand", FEEDLANE_AGAIN, f.working(), nullptr),
    HOLDS(feedlane_worker_scratch, "w NULL", feedlane_worker_scratch(nullptr, 8, 8) == nullptr),
    HOLDS(feedlane_worker_scratch, "no task", feedlane_worker_scratch(f.w(), 8, 8) == nullptr),
    HOLDS(feedlane_worker_scratch, "no power of two", feedlane_worker_scratch(f.working(), 8, 3) == nullptr),
    HOLDS(feedlane_worker_scratch, "the largest alignment",
          feedlane_worker_scratch(f.working(), 8, UINT64_C(1) << 63) == nullptr),
    HOLDS(feedlane_worker_scratch, "all bytes there are",
          feedlane_worker_scratch(f.working(), UINT64_MAX, 0) == nullptr),
    HOLDS(feedlane_worker_scratch, "all but a few",
          feedlane_worker_scratch(f.working(), UINT64_MAX - 8, 16) == nullptr),
    HOLDS(feedlane_worker_scratch, "after commit",
          f.committed() != nullptr && feedlane_worker_scratch(f.w(), 8, 8) == nullptr),
    REFUSES(feedlane_task_commit, "task NULL", FEEDLANE_E_ARGUMENT, "task", 0, 1, nullptr, 1, e),
    REFUSES(feedlane_task_commit, "no rows", FEEDLANE_E_ARGUMENT, "rows", 0, 2, f.task(), 0, e),
    REFUSES(feedlane_task_commit, "a row too many", FEEDLANE_E_ARGUMENT, "rows", 3, 2, f.task(), 3, e),
    REFUSES(feedlane_task_commit, "all rows there can be", FEEDLANE_E_ARGUMENT, "rows", -2, 2, f.task(), UINT64_MAX - 1,
            e),
    REFUSES(feedlane_task_commit, "two rows and 2^32", FEEDLANE_E_ARGUMENT, "rows", (INT64_C(1) << 32) + 2, 2, f.task(),
            (UINT64_C(1) << 32) + 2, e),
    REFUSES(feedlane_task_commit, "twice", FEEDLANE_E_STALE, "", 0, 0, f.committed(), 2, e),
    REFUSES(feedlane_task_commit, "after fail", FEEDLANE_E_STALE, "", 0, 0, f.failed(), 2, e),
    REFUSES(feedlane_task_commit, "abandoned", FEEDLANE_OK, "", 0, 0, f.abandoned(), 2, e),
    REFUSES(feedlane_task_commit, "a copy of the task", FEEDLANE_E_STALE, "", 0, 0, f.copied(), 2, e),
    REFUSES(feedlane_task_commit, "a task without worker", FEEDLANE_E_STATE, "", 0, 0, f.inline_task(), 2, e),
    REFUSES(feedlane_task_fail, "task NULL", FEEDLANE_E_ARGUMENT, "task", 0, 1, nullptr, -1, 0, nullptr, nullptr, e),
    REFUSES(feedlane_task_fail, "position -2", FEEDLANE_E_ARGUMENT, "position", -2, 2, f.task(), -2, 0, nullptr,
            nullptr, e),
    REFUSES(feedlane_task_fail, "position past the last", FEEDLANE_E_ARGUMENT, "position", 2, 2, f.task(), 2, 0,
            nullptr, nullptr, e),
    REFUSES(feedlane_task_fail, "position beyond 2^32", FEEDLANE_E_ARGUMENT, "position", INT64_C(1) << 32, 2, f.task(),
            INT64_C(1) << 32, 0, nullptr, nullptr, e),
    REFUSES(feedlane_task_fail, "twice", FEEDLANE_E_STALE, "", 0, 0, f.failed(), 0, 0, nullptr, nullptr, e),
    REFUSES(feedlane_task_fail, "after commit", FEEDLANE_E_STALE, "", 0, 0, f.committed(), 0, 0, nullptr, nullptr, e),
    REFUSES(feedlane_task_fail, "a copy of the task", FEEDLANE_E_STALE, "", 0, 0, f.copied(), 0, 0, nullptr, nullptr,
            e),
    REFUSES(feedlane_task_fail, "a task without worker", FEEDLANE_E_STATE, "", 0, 0, f.inline_task(), 0, 0, nullptr,
            nullptr, e),
    REFUSES(feedlane_task_fail, "texts without end", FEEDLANE_OK, "", 0, 0, f.task(), 0, INT32_MIN, long_text.c_str(),
            long_text.c_str(), e),
    REFUSES(feedlane_task_commit, "task NULL", FEEDLANE_E_ARGUMENT, "task", 0, 1, nullptr, FEEDLANE_EXHAUSTED, e),
    REFUSES(feedlane_task_commit, "a map-style task", FEEDLANE_E_STATE, "", 0, 0, f.task(), FEEDLANE_EXHAUSTED, e),
    REFUSES(feedlane_task_commit, "after commit", FEEDLANE_E_STALE, "", 0, 0, f.committed(), FEEDLANE_EXHAUSTED, e),
    REFUSES(feedlane_task_commit, "a task without worker", FEEDLANE_E_STATE, "", 0, 0, f.inline_task(),
            FEEDLANE_EXHAUSTED, e),
    REFUSES(feedlane_task_tensor, "task NULL", FEEDLANE_E_ARGUMENT, "task", 0, 1, nullptr, 0, f.shape({1}), nullptr, e),
    REFUSES(feedlane_task_tensor, "index -1", FEEDLANE_E_ARGUMENT, "index", -1, 2, f.task(), -1, f.shape({1}), nullptr,
            e),
    REFUSES(feedlane_task_tensor, "an index beyond the next", FEEDLANE_E_ARGUMENT, "index", 3, 2, f.task(), 3,
            f.shape({1}), nullptr, e),
    REFUSES(feedlane_task_tensor, "full NULL", FEEDLANE_E_ARGUMENT, "full", 0, 1, f.task(), 0, nullptr, nullptr, e),
    REFUSES(feedlane_task_tensor, "full of size 0", FEEDLANE_E_ABI, "full", 0, sizeof(feedlane_field), f.task(), 0,
            f.shape({1}, 0), nullptr, e),
    REFUSES(feedlane_task_tensor, "a negative dimension", FEEDLANE_E_ARGUMENT, "full->shape", -1, 0, f.task(), 0,
            f.shape({2, -1}), nullptr, e),
    REFUSES(feedlane_task_tensor, "an overflow", FEEDLANE_E_ARGUMENT, "full->shape", INT64_MAX, INT64_C(1) << 40,
            f.task(), 0, f.shape({2, INT64_MAX}), nullptr, e),
    REFUSES(feedlane_task_tensor, "nine dimensions", FEEDLANE_E_ARGUMENT, "full->ndim", 9, 8, f.task(), 0,
            f.shape_of(9), nullptr, e),
    REFUSES(feedlane_task_tensor, "another one without a name", FEEDLANE_E_ARGUMENT, "full->name", 0, 31, f.task(), 2,
            f.shape({1}), nullptr, e),
    REFUSES(feedlane_task_tensor, "beyond the slot", FEEDLANE_E_LIMIT, "config.slot_bytes", F::slot_bytes,
            512 + (INT64_C(8) << 30), f.task(), 0, f.shape({INT64_C(1) << 30}), nullptr, e),
    REFUSES(feedlane_task_tensor, "after commit", FEEDLANE_E_STALE, "", 0, 0, f.committed(), 0, f.shape({1}), nullptr,
            e),
    REFUSES(feedlane_task_tensor, "a task without worker", FEEDLANE_E_STALE, "", 0, 0, f.inline_task(), 0, f.shape({1}),
            nullptr, e),
    REFUSES(feedlane_task_store, "task NULL", FEEDLANE_E_ARGUMENT, "task", 0, 1, nullptr, FEEDLANE_STORE_METADATA, "x",
            1, e),
    REFUSES(feedlane_task_store, "kind -1", FEEDLANE_E_ARGUMENT, "kind", -1, FEEDLANE_STORE_STATE, f.task(), -1, "x", 1,
            e),
    REFUSES(feedlane_task_store, "an unknown kind", FEEDLANE_E_ARGUMENT, "kind", FEEDLANE_STORE_STATE + 1,
            FEEDLANE_STORE_STATE, f.task(), FEEDLANE_STORE_STATE + 1, "x", 1, e),
    REFUSES(feedlane_task_store, "bytes NULL", FEEDLANE_E_ARGUMENT, "bytes", 0, 1, f.task(), FEEDLANE_STORE_METADATA,
            nullptr, 1, e),
    REFUSES(feedlane_task_store, "no bytes", FEEDLANE_OK, "", 0, 0, f.task(), FEEDLANE_STORE_METADATA, nullptr, 0, e),
    REFUSES(feedlane_task_store, "all bytes there are", FEEDLANE_E_LIMIT, "config.slot_bytes", F::slot_bytes,
            512 + (INT64_C(1) << 40), f.task(), FEEDLANE_STORE_METADATA, "x", UINT64_MAX, e),
    REFUSES(feedlane_task_store, "after commit", FEEDLANE_E_STALE, "", 0, 0, f.committed(), FEEDLANE_STORE_METADATA,
            "x", 1, e),
    REFUSES(feedlane_task_store, "task NULL", FEEDLANE_E_ARGUMENT, "task", 0, 1, nullptr, FEEDLANE_STORE_STATE, "x", 1,
            e),
    REFUSES(feedlane_task_store, "a map-style task", FEEDLANE_E_STATE, "", 0, 0, f.task(), FEEDLANE_STORE_STATE, "x", 1,
            e),
    REFUSES(feedlane_task_store, "after commit", FEEDLANE_E_STALE, "", 0, 0, f.committed(), FEEDLANE_STORE_STATE, "x",
            1, e),
    REFUSES(feedlane_task_sample_failed, "task NULL", FEEDLANE_E_ARGUMENT, "task", 0, 1, nullptr, 0, &f.failure,
            nullptr, nullptr, &f.index, &f.wait_ns, e),
    REFUSES(feedlane_task_sample_failed, "failure NULL", FEEDLANE_E_ARGUMENT, "failure", 0, 1, f.task(), 0, nullptr,
            nullptr, nullptr, &f.index, &f.wait_ns, e),
    REFUSES(feedlane_task_sample_failed, "failure of size 0", FEEDLANE_E_ABI, "failure", 0, sizeof(feedlane_error),
            f.task(), 0, f.failure_of(0), nullptr, nullptr, &f.index, &f.wait_ns, e),
    REFUSES(feedlane_task_sample_failed, "index NULL", FEEDLANE_E_ARGUMENT, "index", 0, 1, f.task(), 0, &f.failure,
            nullptr, nullptr, nullptr, &f.wait_ns, e),
    REFUSES(feedlane_task_sample_failed, "wait_ns NULL", FEEDLANE_E_ARGUMENT, "wait_ns", 0, 1, f.task(), 0, &f.failure,
            nullptr, nullptr, &f.index, nullptr, e),
    REFUSES(feedlane_task_sample_failed, "no policy", FEEDLANE_E_SAMPLE, "", 0, 0, f.task(), 0, &f.failure, nullptr,
            nullptr, &f.index, &f.wait_ns, e),
    REFUSES(feedlane_task_sample_failed, "a whole batch without retries", FEEDLANE_E_SAMPLE, "", 0, 0, f.task(),
            FEEDLANE_WHOLE_BATCH, &f.failure, nullptr, nullptr, nullptr, &f.wait_ns, e),
    REFUSES(feedlane_task_sample_failed, "a position past the last", FEEDLANE_E_ARGUMENT, "position", 2, 1, f.task(), 2,
            &f.failure, nullptr, nullptr, &f.index, &f.wait_ns, e),
    REFUSES(feedlane_task_sample_failed, "after commit", FEEDLANE_E_STALE, "", 0, 0, f.committed(), 0, &f.failure,
            nullptr, nullptr, &f.index, &f.wait_ns, e),
    REFUSES(feedlane_task_ahead, "task NULL", FEEDLANE_E_ARGUMENT, "task", 0, 1, nullptr, 0, &f.ahead, e),
    REFUSES(feedlane_task_ahead, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.task(), 0, nullptr, e),
    REFUSES(feedlane_task_ahead, "out of size 0", FEEDLANE_E_ABI, "out", 0, sizeof(feedlane_ahead), f.task(), 0,
            f.ahead_of(0), e),
    REFUSES(feedlane_task_ahead, "behind the largest id", FEEDLANE_END, "", 0, 0, f.task(), UINT64_MAX, &f.ahead, e),
    REFUSES(feedlane_task_ahead, "after commit", FEEDLANE_E_STALE, "", 0, 0, f.committed(), 0, &f.ahead, e),
    REFUSES(feedlane_task_ahead, "abandoned", FEEDLANE_END, "", 0, 0, f.abandoned(), 0, &f.ahead, e),
    REFUSES(feedlane_task_ahead, "a copy of the task", FEEDLANE_E_STALE, "", 0, 0, f.copied(), 0, &f.ahead, e),
    REFUSES(feedlane_task_ahead, "a task without worker", FEEDLANE_E_STALE, "", 0, 0, f.inline_task(), 0, &f.ahead, e),
    ANSWERS(feedlane_worker_close, "NULL", FEEDLANE_E_ARGUMENT, nullptr),
    ANSWERS(feedlane_worker_destroy, "NULL", FEEDLANE_OK, nullptr),
    ANSWERS(feedlane_worker_destroy, "a NULL handle", FEEDLANE_OK, &f.handle),
    HOLDS(feedlane_worker_destroy, "twice, with a task in hand",
          feedlane_worker_destroy(f.copy((f.working(), f.worker.release()))) == FEEDLANE_OK && f.handle == nullptr &&
              feedlane_worker_destroy(&f.handle) == FEEDLANE_OK),
};

#define FORKED(function, ...) REFUSES(function, "forked", FEEDLANE_E_FORKED, "", 0, 0, __VA_ARGS__, e)
#define FORKED_ANSWER(function, ...) ANSWERS(function, "forked", FEEDLANE_E_FORKED, __VA_ARGS__)

const Row<F> forked_rows[] = {
    FORKED(feedlane_worker_ready, f.w(), 0, nullptr),
    FORKED(feedlane_worker_next, f.w(), FEEDLANE_FOREVER, &f.place),
    FORKED(feedlane_task_commit, f.in_hand, 2),
    FORKED(feedlane_task_fail, f.in_hand, 0, 0, nullptr, nullptr),
    FORKED(feedlane_task_commit, f.in_hand, FEEDLANE_EXHAUSTED),
    FORKED(feedlane_task_tensor, f.in_hand, 0, f.shape({1}), nullptr),
    FORKED(feedlane_task_store, f.in_hand, FEEDLANE_STORE_METADATA, "x", 1),
    FORKED(feedlane_task_store, f.in_hand, FEEDLANE_STORE_STATE, "x", 1),
    FORKED(feedlane_task_sample_failed, f.in_hand, 0, &f.failure, nullptr, nullptr, &f.index, &f.wait_ns),
    FORKED(feedlane_task_ahead, f.in_hand, 0, &f.ahead),
    FORKED_ANSWER(feedlane_worker_get_info, f.w(), &f.info),
    FORKED_ANSWER(feedlane_worker_check, f.w()),
    FORKED_ANSWER(feedlane_worker_arm, f.w(), nullptr),
    HOLDS(feedlane_worker_scratch, "forked", feedlane_worker_scratch(f.w(), 8, 8) == nullptr),
    FORKED_ANSWER(feedlane_worker_close, f.w()),
    ANSWERS(feedlane_worker_destroy, "forked", FEEDLANE_OK, f.copy(f.w())),
};

const Counted counted{rows}, counted_forked{forked_rows};

}  // namespace

TEST_CASE("bad input: a worker and its tasks") { check_rows(rows); }

TEST_CASE("bad input: a worker in a forked child") {
  F f;
  (void)f.task();
  check_forked(f, forked_rows);
  CHECK(feedlane_task_commit(f.in_hand, 2, nullptr) == FEEDLANE_OK);
}
