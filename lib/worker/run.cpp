// SPDX-License-Identifier: Apache-2.0
// The callback form of a worker: a loop of the pull form that calls the data set.
#include "worker/worker.hpp"

#include <new>

namespace feedlane::worker {
namespace {

class RunPace final : public WorkerPace {
 public:
  RunPace(Worker& worker, Error& error) : WorkerPace(worker), error_(error) {}
  Status pause(std::int64_t until_ns) override {
    Status s = FEEDLANE_INTERRUPTED;
    while (s == FEEDLANE_INTERRUPTED) s = worker_.pause(until_ns, error_);
    return s;
  }

 private:
  Error& error_;
};

Status run_dataset(Worker& worker, dataset::DatasetRunner& dataset, dataset::Progress& progress, Error& reason) {
  RunPace pace(worker, reason);
  try {
    return dataset.run(worker.task(), progress, pace, reason);
  } catch (const std::bad_alloc&) {
    return reason.fail(FEEDLANE_E_MEMORY, "out of memory");
  }
}

// Runs one task through the callbacks. Puts a result into the lane, unless the trainer ends this worker.
Status make_batch(Worker& worker, dataset::DatasetRunner& dataset, Error& error) {
  dataset::Progress progress;
  Error reason;
  Status s = run_dataset(worker, dataset, progress, reason);
  if (s == FEEDLANE_OK) {
    s = worker.commit(progress.made, reason);
    if (s == FEEDLANE_OK) return s;
  }
  switch (s) {
    case FEEDLANE_END:
      // The shard is exhausted, or the trainer ends this worker.
      return worker.task().is_iterable() && worker.check() != FEEDLANE_END ? worker.exhausted(error) : s;
    case FEEDLANE_ABANDONED: return worker.abandon(error);
    case FEEDLANE_E_INIT: return worker.fail_shard(reason.text, reason.detail, error);
    case FEEDLANE_E_SAMPLE:
    case FEEDLANE_E_ARGUMENT:
    case FEEDLANE_E_LIMIT:
    case FEEDLANE_E_MEMORY: break;      // this batch fails; the next one may succeed
    default: error = reason; return s;  // this process can't continue
  }
  const bool blames_sample = reason.sample >= 0;
  return worker.fail(blames_sample ? static_cast<std::int64_t>(progress.position) : -1, reason.transient, reason.text,
                     reason.detail, progress.position + (blames_sample ? 1 : 0), error);
}

}  // namespace

Status run(Worker& worker, dataset::DatasetRunner& dataset, Error& error) {
  const feedlane_worker_info info = worker.info();
  worker.take_callbacks();
  Status opened = dataset.check_style(info.iterable != 0, "dataset", error);
  if (opened != FEEDLANE_OK) opened = error.code = FEEDLANE_E_INIT;
  else opened = dataset.open(info, error);
  if (opened != FEEDLANE_OK) {
    Error ignored;  // the data set's own error is more useful
    (void)worker.ready(opened, error.text, ignored);
    return opened;
  }
  Status s = worker.ready(FEEDLANE_OK, nullptr, error);
  const feedlane_task* task = nullptr;
  while (s == FEEDLANE_OK || s == FEEDLANE_INTERRUPTED) {
    s = worker.next(FEEDLANE_FOREVER, &task, error);
    if (s == FEEDLANE_OK) s = make_batch(worker, dataset, error);
  }
  dataset.close();
  return s == FEEDLANE_END ? FEEDLANE_OK : s;
}

}  // namespace feedlane::worker
