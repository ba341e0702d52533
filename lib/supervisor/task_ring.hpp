// SPDX-License-Identifier: Apache-2.0
// The trainer's end of one worker's tasks: the ring that sends them, the tasks that were taken back, and the worker's
// row, which claims how far it has come. The worker can write the row, so its values are hints until they are checked.
#pragma once

#include <cstdint>
#include <vector>

#include "ring/doorbell.hpp"
#include "ring/spsc.hpp"
#include "shm/segment.hpp"

namespace feedlane::supervisor {

class TaskRing {
 public:
  void init(std::uint32_t worker, const shm::Segments& segments);
  // For a new generation, which starts at position(). No other process uses the row during the call.
  void reset(int worker_event);
  [[nodiscard]] std::uint64_t position() const { return ring_.position(); }
  // The worker is gone and has no tasks any more.
  void forget() {
    unfinished_ = 0;
    revoked_.clear();
  }

  // Call it only if has_room, which doesn't depend on anything that the worker writes.
  void send(const shm::TaskMessage& message);
  [[nodiscard]] bool has_room() const { return unfinished_ + revoked_.size() < capacity_; }
  // The most unfinished and revoked tasks.
  [[nodiscard]] std::uint32_t capacity() const { return capacity_; }
  void ring_doorbell() const { (void)bell_.ring(); }
  // Whether a task would have to wake it. Relaxed: a hint; `ring_doorbell` decides.
  [[nodiscard]] bool is_asleep() const { return row_->sleeping.load(std::memory_order_relaxed) != 0; }
  // Number of tasks that were sent to this generation and neither answered nor revoked.
  [[nodiscard]] std::uint32_t unfinished() const { return unfinished_; }
  void count_answer() { unfinished_--; }
  // Id of the newest task sent.
  [[nodiscard]] std::uint64_t last_sent() const { return last_sent_; }

  // Takes back tasks that the worker has not begun. `ids`: in the order in which they were sent. Returns how many of
  // the first ones the worker keeps because it has begun them. It answers ABANDONED for the others and doesn't touch
  // their slots. `oldest`: the first of all its tasks that it has not answered.
  std::size_t revoke(const std::vector<std::uint64_t>& ids, std::uint64_t oldest);
  // Number of revoked tasks that it has not answered.
  [[nodiscard]] std::size_t revoked() const { return revoked_.size(); }
  // The worker has answered this task. False: the task was not revoked.
  bool forget_revoked(std::uint64_t id);
  // Whether the worker may have seen a revocation of this task, even if `revoke` counted the task as kept.
  [[nodiscard]] bool may_decline(std::uint64_t id) const { return id >= revoked_from_ && id < revoked_until_; }

  // The done-event: the worker is to end once it has answered the tasks that it has begun.
  void ring_done(std::uint32_t generation);

  // ---- values that the worker writes ----

  // The task that it has in hand; 0: none.
  [[nodiscard]] std::uint64_t in_hand() const { return row_->started_task.load(std::memory_order_relaxed); }
  // Every task up to this one was begun, and will be answered unless the worker dies.
  [[nodiscard]] std::uint64_t begun_through() const { return row_->begun_through.load(std::memory_order_relaxed); }
  // The row that it has in hand.
  [[nodiscard]] std::uint64_t row_in_hand() const { return row_->started_sample.load(std::memory_order_relaxed); }
  // Number of samples that it passed over in its shard because they were delivered before.
  [[nodiscard]] std::uint64_t passed_over() const { return row_->passed_over.load(std::memory_order_relaxed); }
  // Both marks, to be compared with its lane: see audit.hpp.
  struct Marks {
    std::uint64_t begun;
    std::uint64_t in_hand;  // equal to `begun`, 0, or a task that it is about to begin

    // The newest task whose result must be in the lane.
    [[nodiscard]] std::uint64_t answered() const { return in_hand == 0 || begun == 0 ? begun : begun - 1; }
  };
  [[nodiscard]] Marks marks() const {
    // Acquire, in this order: pairs with the release stores in Worker::take_task and Worker::send_result.
    const std::uint64_t begun = row_->begun_through.load(std::memory_order_acquire);
    return {begun, row_->started_task.load(std::memory_order_acquire)};
  }

 private:
  void set_revoked(std::uint64_t from, std::uint64_t until);

  std::uint32_t capacity_ = 0;
  std::uint32_t unfinished_ = 0;
  std::uint64_t last_sent_ = 0;
  std::vector<std::uint64_t> revoked_;  // not answered yet
  std::uint64_t revoked_from_ = 0;
  std::uint64_t revoked_until_ = 0;
  shm::TrainerRow* trainer_row_ = nullptr;
  shm::WorkerRow* row_ = nullptr;
  ring::Producer ring_;
  ring::Doorbell bell_;
};

}  // namespace feedlane::supervisor
