// SPDX-License-Identifier: Apache-2.0
// Whose workers a crew has: what the crew tells its owner, and asks it. The crew knows how workers live and die; what their
// tasks are about is the owner's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "os/poller.hpp"
#include "shm/layout.hpp"

namespace feedlane::supervisor {

// What a worker that is gone leaves behind.
struct Gone {
  const char* how;  // the end of "worker 1: process 2 ..."
  pid_t pid;
  std::uint64_t blamed_task;  // what it had in hand, or was cut off for
  bool counts_kill;           // false: it was counted when the worker got stuck, or the worker was not to blame
  bool is_stopping;           // all workers are being ended
};

// A task that a worker has, for messages. batch -1: it has no such task.
struct TaskFacts {
  std::int64_t batch = -1;
  std::int64_t sample = -1;  // of the row in hand
};

// What the crew tells its owner, and asks.
class CrewOwner {
 public:
  virtual void on_result(std::uint32_t worker, const shm::ResultMessage& result) = 0;
  // A worker can take tasks now.
  virtual void on_ready() = 0;
  // A worker is gone: its tasks go to others. Returns the batch that it had in hand, -1: none.
  virtual std::int64_t on_gone(std::uint32_t worker, const Gone& gone) = 0;
  // A worker hangs and cannot be ended; it may write on. What it has goes to others.
  virtual void on_stuck(std::uint32_t worker) = 0;
  // The workers cannot continue: `next` returns this error from here on.
  virtual void on_failure(const Error& error) = 0;
  // A worker that could reach all slots ended without a word.
  virtual void on_memory_in_doubt() = 0;

  // The worker is stuck with this task, which counts as a death: a batch that does this to every worker is given up. Returns the
  // batch, -1: it has no such task. `how` as in Gone.
  virtual std::int64_t count_kill(std::uint32_t worker, std::uint64_t task, pid_t pid, const char* how) = 0;
  [[nodiscard]] virtual TaskFacts facts_of(std::uint32_t worker, std::uint64_t task, std::uint64_t row) const = 0;
  [[nodiscard]] virtual bool has_task(std::uint32_t worker, std::uint64_t task) const = 0;
  // For each worker the first task that it has not answered, UINT64_MAX: none.
  virtual void find_oldest_tasks(std::vector<std::uint64_t>& of_worker) const = 0;
  // Samples that it may have to pass over in its shard.
  [[nodiscard]] virtual std::uint64_t delivered_by(std::uint32_t worker) const = 0;
  [[nodiscard]] virtual std::int64_t epoch() const = 0;
  // The epoch needs workers still.
  [[nodiscard]] virtual bool is_work_left() const = 0;
  // Each batch has one worker that alone can make it.
  [[nodiscard]] virtual bool binds_workers() const = 0;
  // The loader was closed: waits end with INTERRUPTED.
  [[nodiscard]] virtual bool is_cut_short() const = 0;
  // An event of the waiter while the crew waits: the crew's own go to Crew::handle.
  virtual void on_event(const os::Poller::Event& event) = 0;

 protected:
  ~CrewOwner() = default;
};

}  // namespace feedlane::supervisor
