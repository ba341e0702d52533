// SPDX-License-Identifier: Apache-2.0
// The workers of a loader: started, heard, watched, replaced and stopped. The crew knows how workers live and die; what their
// tasks are about is its owner's, which it tells and asks.
//
//   crew.cpp    starting, hearing, and losing workers
//   replace.cpp another worker in the place of one that is gone
//   limits.cpp  what follows when a deadline has passed or an audit failed
//   ending.cpp  asking to end, killing, waiting for ends
//
// Used by the loader's thread only, except take_offer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "monitor/events.hpp"
#include "os/fd.hpp"
#include "os/limits.hpp"
#include "os/poller.hpp"
#include "ring/lanes.hpp"
#include "ring/waiter.hpp"
#include "shm/segment.hpp"
#include "supervisor/deadlines.hpp"
#include "supervisor/launcher.hpp"
#include "supervisor/member.hpp"
#include "supervisor/settings.hpp"

namespace feedlane::supervisor {

// What a worker that is gone leaves behind.
struct Gone {
  const char* how;  // the end of "worker 1: process 2 ..."
  pid_t pid;
  std::uint64_t blamed_task;  // what it had in hand, or was cut off for
  bool counts_kill;           // that task was not blamed for this end before
  bool is_refused;            // it was cut off for what it said about that task
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
  // Words of this worker about a task are refused. task 0: about none.
  virtual void on_refused(std::uint32_t worker, std::uint64_t task, const Error& why) = 0;
  // The workers cannot continue: `next` returns this error from here on.
  virtual void on_failure(const Error& error) = 0;
  // A worker that could reach all slots ended without a word.
  virtual void on_memory_in_doubt() = 0;

  // The worker is stuck with this task, which counts as a death: a batch that does this to every worker is given up. Returns the
  // batch, -1: it has no such task.
  virtual std::int64_t count_kill(std::uint32_t worker, std::uint64_t task) = 0;
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

class Crew {
 public:
  // All must outlive the crew.
  Crew(const Settings& settings, shm::Segments& segments, monitor::EventQueue& events, ring::Waiter& waiter,
       CrewOwner& owner)
      : settings_(settings),
        segments_(segments),
        events_(events),
        waiter_(waiter),
        owner_(owner),
        deadlines_(settings) {}
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  Status set_up(ChildMain child_main, const os::SystemFiles& files, Error& error);

  // ---- starting ----

  // Every place that the library fills has a worker after this, or one on its way.
  Status start_missing(Error& error);
  // A place for the host's worker: see feedlane_loader_open_worker.
  Status open_worker(std::int32_t& id, os::Fd& fd, Error& error);
  // Any thread: the socket for a thread that comes to work.
  Status take_offer(os::Fd& fd, Error& error) {
    return members_.empty() ? refuse_offer(settings_.start, error) : launcher_->take_offer(fd, error);
  }
  // In a forked child: what is the trainer's alone.
  void close_in_child();

  // ---- what happens ----

  // Results that are in the lanes. Bounded: a worker has no more tasks than it was sent, and anything else shuts its lane.
  void sweep();
  [[nodiscard]] bool has_results() const { return lanes_.any(); }
  // An event of the waiter, if it is the crew's.
  void handle(const os::Poller::Event& event);
  // Deaths, messages and deadlines that have come, without a wait.
  Status take_news(Error& error);
  // take_news, if a worker must have said more than was heard.
  Status take_overdue_news(Error& error);
  // A result has come from a worker that has not said it is ready: that word is waiting.
  void expect_news() { has_overdue_news_ = true; }
  // Compares what the workers say with what is known. With the doorbell armed before a sleep: a worker rings after it has
  // marked a task answered, so nothing is missed until the next ring.
  void audit();
  void look() { deadlines_.look(members_); }
  // When the trainer has to look after its workers again.
  [[nodiscard]] os::Deadline next_deadline() const { return deadlines_.next(members_); }
  [[nodiscard]] os::Deadline next_look() const { return deadlines_.next_look(members_); }
  // Ends a worker for words that cannot be true. What is left in its lane is not believed, and its tasks stay its own until
  // it is gone. task: the one that is blamed, 0: none.
  void disown(std::uint32_t worker, std::uint64_t task, const Error& why);
  void note_progress(std::uint32_t worker, std::int64_t at_ns) { deadlines_.note_progress(members_[worker], at_ns); }

  // ---- ending ----

  // All workers at once: done-event, then SIGTERM, then SIGKILL. What is left of processes has `death_ns` since then to go.
  Status end(std::int64_t death_ns, Error& error);
  // Asks all to end, and waits for them until the deadline. TIMEOUT, INTERRUPTED.
  Status end_gently(os::Deadline deadline, Error& error);
  // Asks all to end, without a wait.
  void ask_to_end() noexcept;
  // Without a wait: those that are still there are killed, those that cannot be are asked to end.
  void abandon() noexcept;

  // ---- what is known ----

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(members_.size()); }
  [[nodiscard]] Member& at(std::uint32_t worker) { return members_[worker]; }
  [[nodiscard]] const Member& at(std::uint32_t worker) const { return members_[worker]; }
  [[nodiscard]] std::span<const Member> members() const { return members_; }
  [[nodiscard]] const Launcher& launcher() const { return *launcher_; }
  // Workers that are stuck.
  [[nodiscard]] std::uint32_t stuck() const { return stuck_; }
  // A worker that was taken for stuck has answered, or is gone.
  void unstick(std::uint32_t worker) {
    if (std::exchange(members_[worker].is_stuck, false)) stuck_--;
  }
  // A worker is there that can be heard of again, or is on its way.
  [[nodiscard]] bool any_there() const;
  // A worker is there that was asked to end, or has failed.
  [[nodiscard]] bool any_ending() const;
  // Why no worker is there, until it was told; code OK: one is.
  [[nodiscard]] Error& start_error() { return start_error_; }

 private:
  // crew.cpp
  Status open_place(std::uint32_t w, os::Fd& theirs, Error& error);
  Status start(std::uint32_t w, Error& error);
  Peer::Heard listen(std::uint32_t w, Error& error);
  void hear(std::uint32_t w);
  void hear_last_words(std::uint32_t w);
  void drain_lane(std::uint32_t w);
  void lose(std::uint32_t w);
  void tell_of_death(std::uint32_t w, const Gone& gone, std::int64_t batch);
  void tell_of_leaving(std::uint32_t w, pid_t pid);
  [[nodiscard]] bool others_continue(std::uint32_t w) const;

  // replace.cpp
  void replace(std::uint32_t w, bool had_attached, const Gone& gone);
  Status start_again(std::uint32_t w, Error& error);
  void start_later(std::uint32_t w, Error& error);
  void start_at_last(std::uint32_t w);
  void give_up_place(std::uint32_t w, const Gone& gone);

  // limits.cpp
  void check_deadlines();
  void give_up_start(std::uint32_t w);
  void give_up_task(std::uint32_t w);
  void give_up_death(std::uint32_t w);
  void stick(std::uint32_t w);
  void audit(std::uint32_t w, std::uint64_t oldest);

  // ending.cpp
  void ask_each_to_end();
  Status wait_for_ends(os::Deadline deadline, bool is_interruptible, Error& error);
  Status wait_for_undead(std::int64_t death_ns, Error& error);
  void kill_all(int signal);

  const Settings& settings_;
  shm::Segments& segments_;
  monitor::EventQueue& events_;
  ring::Waiter& waiter_;
  CrewOwner& owner_;
  std::unique_ptr<Launcher> launcher_;
  std::vector<Member> members_;
  std::vector<std::uint64_t> oldest_;  // see audit
  ring::Lanes lanes_;
  Deadlines deadlines_;
  os::Fd self_;  // pidfd of this process
  std::uint32_t stuck_ = 0;
  bool is_stopping_ = false;
  bool has_overdue_news_ = false;
  Error start_error_;
};

}  // namespace feedlane::supervisor
