// SPDX-License-Identifier: Apache-2.0
// Worker handles, for the files of the C interface that use them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "feedlane/dataset.h"
#include "handle.hpp"
#include "lending/life.hpp"
#include "os/fd.hpp"
#include "shm/segment.hpp"
#include "worker/worker.hpp"

struct feedlane_worker : feedlane::capi::Handle {
  static const char* noun() { return "worker"; }

  feedlane::lending::Life* owner = nullptr;  // set for a thread of the trainer's process
  std::unique_ptr<feedlane::worker::Worker> worker;
  feedlane::worker::Worker::Ahead ahead;  // of the newest feedlane_task_ahead

  void wake() { worker->close(); }
};

namespace feedlane::capi {

template <>
void finish(feedlane_worker& w);

struct WorkerDeleter {
  void operator()(feedlane_worker* worker) const;
};

// Attaches the calling thread. For a thread of the trainer's process, `local` is the trainer's own mapping, and one
// count of `owner` is let go when the handle is deleted. A forked child takes over its parent's view of data,
// `inherited`.
Status attach_worker(os::Fd socket, int64_t timeout_ns, lending::Life* owner, const shm::Segments* local,
                     std::unique_ptr<feedlane_worker, WorkerDeleter>& out, Error& error,
                     shm::Segments* inherited = nullptr);

// The main function of a forked worker. Returns its exit status.
int forked_worker_main(int fd, const feedlane_dataset& dataset, shm::Segments& inherited);

// Finds the worker of a task, and checks that it still has this task in hand.
template <class F>
int32_t with_task(const feedlane_task* task, feedlane_error* err, F&& f) {
  if (task == nullptr) return call(err, [](Error& error) { return refuse_null(error, "task"); });
  if (task->worker == nullptr)
    return call(err, [](Error& error) {
      return error.fail(FEEDLANE_E_STATE, "a task passed to a callback ends when the callback returns, not by a call");
    });
  return call_one(task->worker, "task->worker", err, [&](Error& error) {
    worker::Worker& w = *task->worker->worker;
    if (task != &w.task().view() || !w.task().is_open())
      return error.fail(FEEDLANE_E_STALE, "this task has already ended");
    return f(w, error);
  });
}

}  // namespace feedlane::capi
