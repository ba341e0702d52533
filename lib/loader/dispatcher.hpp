// SPDX-License-Identifier: Apache-2.0
// Between the ledger and the workers: draws batches, sends them as tasks, takes tasks back, and continues tasks of dead
// and stuck workers.
//
//   dispatcher.cpp  order -> ledger -> workers
//   rescue.cpp      workers that are gone or stuck -> ledger
//
// Used by the loader's thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "loader/config.hpp"
#include "loader/failure.hpp"
#include "loader/ledger.hpp"
#include "loader/memory.hpp"
#include "loader/order.hpp"
#include "loader/prefetch.hpp"
#include "loader/staging.hpp"
#include "loader/stamps.hpp"
#include "loader/wakeups.hpp"
#include "loader/worker_choice.hpp"
#include "supervisor/launcher.hpp"
#include "supervisor/roster.hpp"

namespace feedlane::loader {

// A worker that is gone.
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

class Dispatcher {
 public:
  // All must outlive the dispatcher.
  Dispatcher(const Config& config, Memory& memory, Stamps& stamps, const Prefetch& prefetch, Ledger& ledger,
             const Failure& failure, Wakeups& wakeups, monitor::EventQueue& events, supervisor::Roster& roster)
      : config_(config),
        memory_(memory),
        stamps_(stamps),
        prefetch_(prefetch),
        ledger_(ledger),
        failure_(failure),
        wakeups_(wakeups),
        events_(events),
        roster_(roster),
        choice_(prefetch, roster) {}
  void use(Order& order);
  // For loaders with workers: how they are started, and how many processors this process may use.
  void use(const supervisor::Launcher& launcher, int cpus);

  // ---- an epoch ----

  // Whether an epoch has begun; false again if it ends early. Nothing is drawn before it begins.
  void set_begun(bool has_begun) { has_begun_ = has_begun; }
  [[nodiscard]] bool has_begun() const { return has_begun_; }
  // Draws as many batches as the window allows, and sends them. Returns an error of the sampler.
  Status dispatch(Error& error);
  // Like `dispatch`, but keeps the sampler's error. `next` returns it when nothing is left to yield before it.
  // may_hold: short tasks that would have to wake a worker wait until there are many, or until a call without may_hold.
  void feed(bool may_hold = false);
  // At the start of an epoch: tells the order again which workers are stuck.
  void restate_stuck();
  // Gives up the epoch's batches. A batch that was sent keeps its slot busy until its worker answers or dies.
  void abandon_epoch(bool has_workers, Staging* staging);

  // How many workers get tasks that are bound to none.
  [[nodiscard]] std::uint32_t engaged() const { return choice_.engagement().workers(); }
  // The trainer is about to sleep: whatever is pending is sent, to any worker.
  void engage_all();

  // ---- queries of `next` ----

  // Whether a batch could be drawn, or a stranded one rescued.
  [[nodiscard]] bool has_work() const;
  // Whether the next batch waits for a free slot.
  [[nodiscard]] bool lacks_slot() const;
  // Whether batches depend on a live sampler only: none is in flight, and it has no indices now.
  [[nodiscard]] bool is_left_to_sampler() const { return wakeups_.awaits_sampler() && ledger_.in_flight() == 0; }
  // The sampler's error, if nothing is left to be yielded before it; else nullptr.
  [[nodiscard]] Error* sampler_error() {
    return sampler_error_.code != FEEDLANE_OK && ledger_.in_flight() == 0 ? &sampler_error_ : nullptr;
  }
  // Whether only a release by the trainer can free a slot.
  [[nodiscard]] bool is_out_of_slots() const;
  // Whether a stuck worker holds work that no other worker can continue.
  [[nodiscard]] bool is_left_to_stuck() const;
  // Why slots or tasks keep `next` from ever yielding: SLOTS_HELD, E_HUNG, E_PEER_DEAD.
  Status obstacle(Error& error) const;
  // Why a task cannot be sent with its slot.
  [[nodiscard]] Error& slot_error() { return slot_error_; }
  // Looks at all slots once every four tasks a slot. Slots without a task for long give memory back. Returns whether a
  // task sent long ago is unanswered, or a worker should have become ready by now.
  [[nodiscard]] bool look();

  // ---- workers ----

  // The worker has answered a task.
  void on_answer(std::uint32_t worker) { choice_.note(worker); }
  // A worker can take tasks now.
  void on_ready() {
    choice_.note_all();
    assign_pending();
    balance();
  }
  // A worker is gone: its tasks go to others. Returns the batch that it had in hand, -1: none.
  std::int64_t on_gone(std::uint32_t worker, const Gone& gone);
  // A worker hangs and cannot be ended. It may continue to write its slot. Its tasks go to others.
  void on_stuck(std::uint32_t worker);
  // The worker is stuck with this task. Counts as a death, so that a batch which makes every worker stuck is given up.
  // Returns the batch, -1: the worker has no such task. `how`: as in Gone.
  std::int64_t count_kill(std::uint32_t worker, std::uint64_t task, pid_t pid, const char* how);
  [[nodiscard]] TaskFacts facts_of(std::uint32_t worker, std::uint64_t task, std::uint64_t row) const;
  // Number of samples that the worker may have to pass over in its shard because they were delivered.
  [[nodiscard]] std::uint64_t delivered_by(std::uint32_t worker) const { return order_->delivered_by(worker); }
  [[nodiscard]] std::int64_t epoch() const { return order_->epoch(); }
  // Whether the epoch still needs workers.
  [[nodiscard]] bool is_work_left() const;
  // Whether each batch can be made by one worker only.
  [[nodiscard]] bool binds_workers() const { return order_->has_shards(); }

 private:
  // dispatcher.cpp
  [[nodiscard]] bool can_draw() const;
  bool take_slot(std::uint32_t& slot);
  void assign_pending();
  void send_pending();
  void balance();
  bool take_back_from(std::uint32_t worker);

  // rescue.cpp
  void quarantine(const Entry& entry, std::uint32_t worker);
  void rescue_stranded();
  bool rescue(const Entry& entry);
  Status obstacle_of_stuck(Error& error) const;

  const Config& config_;
  Memory& memory_;
  Stamps& stamps_;
  const Prefetch& prefetch_;
  Ledger& ledger_;
  const Failure& failure_;
  Wakeups& wakeups_;
  monitor::EventQueue& events_;
  supervisor::Roster& roster_;
  Order* order_ = nullptr;
  const supervisor::Launcher* launcher_ = nullptr;
  bool has_begun_ = false;
  Error sampler_error_;  // not reported yet
  Error slot_error_;     // not reported yet
  WorkerChoice choice_;
  bool binds_ = false;                    // each batch has its worker
  bool may_hold_ = false;                 // see feed
  std::uint64_t looked_at_ = 0;           // the next task's id at the last look: see look
  bool any_stranded_ = false;             // a stuck worker has a batch, and no slot was free to continue it
  std::uint32_t free_when_stranded_ = 0;  // free slots at the last try
  std::vector<std::uint32_t> to_ring_;    // workers that were sent tasks
  std::vector<std::pair<std::uint64_t, std::uint32_t>> queued_;  // tasks to take back or rescue, with their slots
  std::vector<std::uint64_t> queued_ids_;
};

}  // namespace feedlane::loader
