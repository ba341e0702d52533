// SPDX-License-Identifier: Apache-2.0
// A worker closed from another thread, and its references.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// A thread of this process as the only worker of a loader.
struct Threaded {
  Threaded() : setup(4, 2) {
    setup.external(1).config.start = FEEDLANE_START_THREAD;
    loader = setup.create();
    REQUIRE(feedlane_worker_attach(-1, loader.get(), FEEDLANE_FOREVER, &worker, nullptr) == FEEDLANE_OK);
    REQUIRE(feedlane_worker_ready(worker, FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
  }
  Setup setup;
  Loader loader;
  feedlane_worker* worker = nullptr;
};

// Sleeps in feedlane_worker_next in a thread of its own.
struct Sleeping {
  explicit Sleeping(feedlane_worker* w)
      : thread([this, w] {
          id = ::gettid();
          const feedlane_task* task = nullptr;
          answer = feedlane_worker_next(w, FEEDLANE_FOREVER, &task, nullptr);
        }) {
    while (id == 0) std::this_thread::yield();
    CHECK(eventually([this] { return is_asleep(id); }));
  }
  std::atomic<pid_t> id{0};
  std::int32_t answer = -1000;
  std::thread thread;
};

}  // namespace

TEST_CASE("closing a worker from another thread ends its wait with E_STATE, and every later call returns E_STATE") {
  Threaded t;
  Sleeping s(t.worker);
  CHECK(feedlane_worker_close(t.worker) == FEEDLANE_OK);
  s.thread.join();
  CHECK(s.answer == FEEDLANE_E_STATE);
  const feedlane_task* task = nullptr;
  auto info = fresh<feedlane_worker_info>();
  CHECK(feedlane_worker_next(t.worker, 0, &task, nullptr) == FEEDLANE_E_STATE);
  CHECK(feedlane_worker_check(t.worker) == FEEDLANE_E_STATE);
  CHECK(feedlane_worker_arm(t.worker, nullptr) == FEEDLANE_E_STATE);
  CHECK(feedlane_worker_get_info(t.worker, &info) == FEEDLANE_E_STATE);
  CHECK(feedlane_worker_scratch(t.worker, 8, 8) == nullptr);
  CHECK(feedlane_worker_destroy(&t.worker) == FEEDLANE_OK);
  CHECK(t.worker == nullptr);
}

TEST_CASE("destroy ends another thread's wait for a task with E_STATE and then frees the worker") {
  Threaded t;
  Sleeping s(t.worker);
  CHECK(feedlane_worker_destroy(&t.worker) == FEEDLANE_OK);
  CHECK(t.worker == nullptr);
  s.thread.join();
  CHECK(s.answer == FEEDLANE_E_STATE);
}

TEST_CASE("the unfinished task of a closed worker is finished by the next worker") {
  Threaded t;
  begin(t.loader.get(), 0);
  const feedlane_task* task = nullptr;
  (void)feedlane_loader_poll(t.loader.get(), nullptr);
  REQUIRE(feedlane_worker_next(t.worker, patience_ns, &task, nullptr) == FEEDLANE_OK);
  CHECK(feedlane_worker_close(t.worker) == FEEDLANE_OK);
  CHECK(feedlane_task_commit(task, 2, nullptr) == FEEDLANE_E_STATE);
  CHECK(feedlane_worker_destroy(&t.worker) == FEEDLANE_OK);
  feedlane_worker* another = nullptr;
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(t.loader.get(), nullptr);
    return feedlane_worker_attach(-1, t.loader.get(), FEEDLANE_FOREVER, &another, nullptr) == FEEDLANE_OK;
  }));
  REQUIRE(feedlane_worker_ready(another, FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
  (void)feedlane_loader_poll(t.loader.get(), nullptr);
  REQUIRE(feedlane_worker_next(another, patience_ns, &task, nullptr) == FEEDLANE_OK);
  CHECK(task->batch == 0);
  CHECK(task->attempt == 1);
  CHECK(feedlane_worker_destroy(&another) == FEEDLANE_OK);
}

TEST_CASE("a closed worker leaves when it is destroyed") {
  Threaded t;
  CHECK(feedlane_worker_close(t.worker) == FEEDLANE_OK);
  CHECK(feedlane_worker_check(t.worker) == FEEDLANE_E_STATE);
  CHECK_MESSAGE(worker_of(t.loader.get(), 0).generation == 0, "it hasn't left");
  CHECK(feedlane_worker_destroy(&t.worker) == FEEDLANE_OK);
  CHECK(eventually([&] {
    (void)feedlane_loader_poll(t.loader.get(), nullptr);
    return worker_of(t.loader.get(), 0).generation == 1;
  }));
}
