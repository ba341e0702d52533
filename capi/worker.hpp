// SPDX-License-Identifier: Apache-2.0
// Worker handles, as the loader's side makes them for threads and forked children.
#pragma once

#include <memory>

#include "handle.hpp"
#include "os/fd.hpp"
#include "shm/segment.hpp"

namespace feedlane::capi {

struct WorkerDeleter {
  void operator()(feedlane_worker* worker) const;
};

// Attaches the calling thread. `local` is the trainer's own mapping when the thread is one of the trainer's process; then
// `owner` is let go of when the handle is deleted.
// A forked child takes over its parent's view of data, `inherited`.
Status attach_worker(os::Fd socket, int64_t timeout_ns, feedlane_loader* owner, const shm::Segments* local,
                     std::unique_ptr<feedlane_worker, WorkerDeleter>& out, Error& error,
                     shm::Segments* inherited = nullptr);

// The callback form on an attached worker.
Status run_worker(feedlane_worker& handle, const feedlane_dataset& dataset, Error& error);

// What a forked worker runs; its exit status.
int forked_worker_main(int fd, const feedlane_dataset& dataset, shm::Segments& inherited);

}  // namespace feedlane::capi
