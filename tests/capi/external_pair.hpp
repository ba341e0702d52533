// SPDX-License-Identifier: Apache-2.0
// A loader with one external worker, which is a forked child of the test.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "support/process.hpp"
#include "support/trainer.hpp"

namespace feedlane::test {

// In the child: an attached worker.
inline Worker attach(int fd, Findings& f) {
  feedlane_worker* w = nullptr;
  EXPECT(f, feedlane_worker_attach(fd, nullptr, patience_ns, &w, nullptr) == FEEDLANE_OK);
  return Worker(w);
}

inline const feedlane_task* next_task(const Worker& w, Findings& f) {
  const feedlane_task* task = nullptr;
  EXPECT(f, feedlane_worker_next(w.get(), patience_ns, &task, nullptr) == FEEDLANE_OK);
  return task;
}

inline std::int32_t make(const feedlane_task* task) {
  std::memcpy(task->tensors[0].data, task->indices, task->count * 8);
  std::memcpy(task->tensors[1].data, task->seeds, task->count * 8);
  return feedlane_task_commit(task, task->count, nullptr);
}

struct Pair {
  // `keep`: other descriptors that the worker needs.
  Pair(std::int64_t samples, std::int64_t batch_size, const std::function<void(int fd, Findings&)>& work,
       std::vector<int> keep = {})
      : setup(samples, batch_size) {
    loader = setup.external(1).create();
    std::int32_t id = -1;
    int fd = -1;
    REQUIRE(feedlane_loader_open_worker(loader.get(), &id, &fd, nullptr) == FEEDLANE_OK);
    keep.push_back(fd);
    child = std::make_unique<Child>(keep, [&](Findings& f) { work(fd, f); });
    (void)::close(fd);
  }
  feedlane_loader* get() const { return loader.get(); }
  Setup setup;
  Loader loader;
  std::unique_ptr<Child> child;
};

}  // namespace feedlane::test
