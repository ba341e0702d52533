// SPDX-License-Identifier: Apache-2.0
// The owner of a crew: what the crew reports to it, and queries from it. The crew manages the lives of workers; only
// the owner knows the contents of their tasks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "os/poller.hpp"
#include "shm/layout.hpp"

namespace feedlane::supervisor {

// A worker that is gone, as reported to the owner.
struct Gone {
  const char* how;  // text after "worker 1: process 2 "
  pid_t pid;
  std::uint64_t blamed_task;    // the task that it had in hand, or was cut off for
  bool counts_kill;             // false: it was counted when the worker got stuck, or the task is not to blame
  bool is_stopping;             // all workers are being ended
  bool leaves_memory_in_doubt;  // it could write all slots, and ended without Leaving
};

// A worker's task, for messages. batch -1: the worker has no such task.
struct TaskFacts {
  std::int64_t batch = -1;
  std::int64_t sample = -1;  // of the row in hand
};

class CrewOwner {
 public:
  // ABANDONED: the task was taken back before. E_CORRUPT: the result is invalid; `blamed` is the task to blame, 0: none.
  virtual Status on_result(std::uint32_t worker, const shm::ResultMessage& result, std::uint64_t& blamed,
                           Error& error) = 0;
  // A worker can take tasks now.
  virtual void on_ready() = 0;
  // A worker is gone: its tasks go to others. Returns the batch that it had in hand, -1: none.
  virtual std::int64_t on_gone(std::uint32_t worker, const Gone& gone) = 0;
  // A worker hangs and cannot be ended. It may continue to write its slot. Its tasks go to others.
  virtual void on_stuck(std::uint32_t worker) = 0;
  // The workers cannot continue: from now on `next` returns this error.
  virtual void on_failure(const Error& error) = 0;

  // The worker is stuck with this task. Counts as a death, so that a batch which makes every worker stuck is given up.
  // Returns the batch, -1: the worker has no such task. `how`: as in Gone.
  virtual std::int64_t count_kill(std::uint32_t worker, std::uint64_t task, pid_t pid, const char* how) = 0;
  [[nodiscard]] virtual TaskFacts facts_of(std::uint32_t worker, std::uint64_t task, std::uint64_t row) const = 0;
  [[nodiscard]] virtual bool has_task(std::uint32_t worker, std::uint64_t task) const = 0;
  // For each worker the first task that it has not answered, UINT64_MAX: none.
  virtual void find_oldest_tasks(std::vector<std::uint64_t>& of_worker) const = 0;
  // Number of samples that the worker may have to pass over in its shard because they were delivered.
  [[nodiscard]] virtual std::uint64_t delivered_by(std::uint32_t worker) const = 0;
  [[nodiscard]] virtual std::int64_t epoch() const = 0;
  // Whether the epoch still needs workers.
  [[nodiscard]] virtual bool is_work_left() const = 0;
  // Whether each batch can be made by one worker only.
  [[nodiscard]] virtual bool binds_workers() const = 0;
  // Whether the loader was closed, so that waits end with INTERRUPTED.
  [[nodiscard]] virtual bool is_cut_short() const = 0;
  // Handles an event that comes while the crew waits. False: the event is not the owner's.
  virtual bool take_event(const os::Poller::Event& event) = 0;

 protected:
  ~CrewOwner() = default;
};

}  // namespace feedlane::supervisor
