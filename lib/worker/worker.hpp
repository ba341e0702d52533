// SPDX-License-Identifier: Apache-2.0
// The worker's side of a loader: attaches, reports Ready, then works on tasks one by one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "dataset/runner.hpp"
#include "dataset/scratch.hpp"
#include "dataset/task.hpp"
#include "feedlane/dataset.h"
#include "greeting/worker.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "ring/doorbell.hpp"
#include "ring/spsc.hpp"
#include "ring/waiter.hpp"
#include "shm/segment.hpp"
#include "tensors/fields.hpp"

namespace feedlane::worker {

class Worker {
 public:
  // Owns the socket in every case. Tasks name `handle` as their worker. A thread of the trainer's process works on the
  // trainer's own mapping, `local`, which must outlive the worker. A forked child of the trainer takes over the mapping
  // of data in `inherited`.
  static Status attach(os::Fd socket, std::int64_t timeout_ns, feedlane_worker* handle, const shm::Segments* local,
                       std::unique_ptr<Worker>& out, Error& error, shm::Segments* inherited = nullptr);
  ~Worker();

  [[nodiscard]] feedlane_worker_info info() const;
  Status ready(Status status, const char* text, Error& error);
  Status next(std::int64_t timeout_ns, const feedlane_task** task, Error& error);
  [[nodiscard]] Status check() const;
  // Storage for the arrays of a feedlane_ahead.
  struct Ahead {
    std::vector<std::int64_t> indices;
    std::vector<std::uint64_t> seeds;
  };
  // The first task behind the one in hand with an id above `after`. `out` points into `room`. END: none.
  Status ahead(std::uint64_t after, Ahead& room, feedlane_ahead& out) const;
  Status commit(std::uint64_t rows, Error& error);
  // `taken`: samples that the task took from its shard, if the data set is iterable.
  Status fail(std::int64_t position, bool transient, std::string_view text, std::string_view detail,
              std::uint64_t taken, Error& error);
  // E_INIT for a shard that can't be started.
  Status fail_shard(std::string_view text, std::string_view detail, Error& error);
  // The task's result is no longer wanted.
  Status abandon(Error& error) { return finish_task(FEEDLANE_ABANDONED, 0, 0, error); }
  // The shard has no more samples.
  Status exhausted(Error& error);
  // Sleeps until `until_ns`. OK; END; ABANDONED: the task's result is no longer wanted; INTERRUPTED.
  Status pause(std::int64_t until_ns, Error& error);
  void* scratch(std::uint64_t bytes, std::uint64_t alignment);

  [[nodiscard]] int wait_fd() const { return waiter_.fd(); }
  [[nodiscard]] Status arm();
  // From now on every wait ends with INTERRUPTED. Thread safety: any thread.
  void close();

  // The task in progress, for its runner.
  [[nodiscard]] const dataset::Task& task() const { return task_; }
  [[nodiscard]] dataset::Task& task() { return task_; }
  // From now on tasks are run by callbacks: only run() ends a task, not a call of commit or fail by the user.
  void take_callbacks() { has_callbacks_ = true; }
  [[nodiscard]] bool has_callbacks() const { return has_callbacks_; }

 private:
  friend class WorkerPace;
  Worker() = default;
  Status set_up(int socket, os::Deadline deadline, shm::Segments* inherited, Error& error);
  Status receive_welcome(int socket, os::Deadline deadline, shm::Segments* inherited, Error& error);
  Status open_rings(const Welcome& welcome, Error& error);
  Status watch_trainer(int socket, Error& error);
  Status take_task(const feedlane_task** task, Error& error);
  Status send_result(Status status, std::uint32_t rows, Error& error);
  Status decline_task(Error& error);
  Status sleep(os::Deadline deadline, Error& error);
  void handle(const os::Poller::Event& event);
  void check_trainer();
  [[nodiscard]] bool is_done() const;
  [[nodiscard]] std::uint64_t abandon_before() const;
  [[nodiscard]] bool is_revoked(std::uint64_t task) const;
  Status finish_task(Status status, std::uint32_t rows, std::uint64_t bytes, Error& error);
  Status finish_failed(Status status, std::int64_t position, bool transient, std::string_view text,
                       std::string_view detail, std::uint64_t taken, Error& error);

  // Received with the welcome.
  struct Link {
    os::Fd socket;
    os::Fd own_event;
    os::Fd trainer_event;
    os::Fd lifeline;
    os::Fd trainer;            // pidfd
    bool is_tied = true;       // the kernel kills this process when the trainer dies
    bool wants_pidfd = false;  // the trainer wants a pidfd of this process
  };

  Link link_;
  ring::Waiter waiter_;
  shm::Segments own_;  // unused by a thread of the trainer
  const shm::Segments* segments_ = &own_;
  tensors::Fields fields_;
  std::vector<feedlane_field> declared_;
  std::uint32_t id_ = 0;
  std::uint32_t generation_ = 0;
  std::int64_t epoch_ = 0;
  shm::WorkerRow* row_ = nullptr;
  const shm::TrainerRow* trainer_row_ = nullptr;
  ring::Consumer tasks_;
  ring::Producer results_;
  ring::Doorbell trainer_bell_;
  dataset::Task task_;
  dataset::Scratch scratch_;
  bool has_attached_ = false;  // has sent Attached; before that there is no Leaving
  bool is_ready_ = false;
  bool has_callbacks_ = false;
  bool is_unfit_ = false;  // its data set could not be opened, so it gets no task
  bool trainer_gone_ = false;
  std::atomic<bool> closed_{false};
  // When the task in hand was begun. In the callback form only run() works between two tasks, so unless the worker
  // sleeps, one clock reading serves as the end of a task and the beginning of the next. 0: the next task reads the
  // clock.
  std::int64_t task_since_ns_ = 0;
  std::int64_t done_ns_ = 0;     // end of the last task
  std::int64_t checked_ns_ = 0;  // when the trainer was last checked to be alive
  static constexpr std::int64_t check_every_ns = 1'000'000;
};

// What Worker::check reads, between the samples of the worker's task. The mark is the row in progress, for the trainer
// and for monitors.
class WorkerPace : public dataset::Pace {
 public:
  explicit WorkerPace(Worker& worker)
      : Pace(worker.row_->started_sample, {worker.trainer_row_->done_through, worker.generation_},
             {worker.segments_->trainer_block()->abandon_before, worker.task_.message().id}),
        worker_(worker) {}
  Status look() override { return worker_.check(); }

 protected:
  ~WorkerPace() = default;
  Worker& worker_;
};

// The callback form, on an attached worker: a loop of the pull form.
Status run(Worker& worker, dataset::DatasetRunner& dataset, Error& error);

}  // namespace feedlane::worker
