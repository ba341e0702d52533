// SPDX-License-Identifier: Apache-2.0
#include "worker/worker.hpp"

namespace feedlane::worker {
namespace {

// One task through the callbacks. Ends with a result in the lane, or, when the trainer wants no more, without one.
Status make_batch(Worker& worker, DatasetRunner& dataset, Error& error) {
  std::uint64_t row = 0;
  Error reason;
  const Status s = dataset.run(
      worker.task(), row,
      [&](std::uint64_t next_row) {
        worker.mark_row(next_row);
        return worker.check();
      },
      reason);
  if (s == FEEDLANE_OK) return worker.commit(worker.task().view().count, error);
  if (s == FEEDLANE_END) return s;
  if (s == FEEDLANE_ABANDONED) return worker.fail(-1, false, feedlane_status_text(s), {}, error);
  const std::int64_t position = reason.sample < 0 ? -1 : static_cast<std::int64_t>(row);
  return worker.fail(position, reason.transient, reason.text, reason.detail, error);
}

}  // namespace

Status run(Worker& worker, DatasetRunner& dataset, Error& error) {
  const feedlane_worker_info info = worker.info();
  if (const Status opened = dataset.open(info, error); opened != FEEDLANE_OK) {
    Error ignored;  // the data set's own error is the one that tells
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
