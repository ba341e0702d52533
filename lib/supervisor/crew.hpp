// SPDX-License-Identifier: Apache-2.0
// The workers of a loader: listened to, watched and stopped, with a Starter that starts and replaces them.
//
//   crew.cpp    hearing and losing workers
//   limits.cpp  what follows when a deadline has passed or an audit failed
//   ending.cpp  asking to end, killing, waiting for ends
//
// Used by the loader's thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "monitor/events.hpp"
#include "os/limits.hpp"
#include "os/poller.hpp"
#include "ring/waiter.hpp"
#include "shm/segment.hpp"
#include "supervisor/deadlines.hpp"
#include "supervisor/owner.hpp"
#include "supervisor/roster.hpp"
#include "supervisor/settings.hpp"
#include "supervisor/starter.hpp"

namespace feedlane::supervisor {

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
        deadlines_(settings),
        starter_(settings, segments, events, waiter, owner, roster_, deadlines_) {}
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  Status set_up(ChildMain child_main, const os::SystemFiles& files, Error& error);
  [[nodiscard]] Roster& roster() { return roster_; }
  [[nodiscard]] const Roster& roster() const { return roster_; }
  [[nodiscard]] Starter& starter() { return starter_; }
  // 0: the loader is inline.
  [[nodiscard]] std::uint32_t size() const { return roster_.size(); }

  // A place for the host's worker: see feedlane_loader_open_worker.
  Status open_worker(std::int32_t& id, os::Fd& fd, Error& error);

  // ---- what happens ----

  // Results that are in the lanes. Bounded: a worker has no more tasks than it was sent, and anything else shuts its lane.
  void sweep();
  // An event of the waiter, if it is the crew's.
  void handle(const os::Poller::Event& event);
  // Deaths, messages and deadlines that have come, without a wait.
  Status handle_events(Error& error);
  // handle_events, if a worker must have said more than was received.
  Status handle_overdue_events(Error& error);
  // A result has come from a worker that has not said it is ready: that word is waiting.
  void expect_events() { has_overdue_events_ = true; }
  // Compares what the workers say with what is known. With the doorbell armed before a sleep: a worker rings after it has
  // marked a task answered, so nothing is missed until the next ring.
  void audit();
  void look() { deadlines_.look(roster_.members()); }
  // When the trainer has to look after its workers again.
  [[nodiscard]] os::Deadline next_deadline() const { return deadlines_.next(roster_.members()); }
  [[nodiscard]] os::Deadline next_look() const { return deadlines_.next_look(roster_.members()); }
  // Ends a worker for words that cannot be true. What is left in its lane is not believed, and its tasks stay its own until
  // it is gone. task: the one that is blamed, 0: none.
  void disown(std::uint32_t worker, std::uint64_t task, const Error& why);
  void note_progress(std::uint32_t worker, std::int64_t at_ns) { deadlines_.note_progress(roster_.at(worker), at_ns); }

  // ---- ending ----

  // All workers at once: done-event, then SIGTERM, then SIGKILL. What is left of processes has `death_ns` since then to go.
  Status end(std::int64_t death_ns, Error& error);
  // Asks all to end, and waits for them until the deadline. TIMEOUT, INTERRUPTED.
  Status end_gently(os::Deadline deadline, Error& error);
  // Asks all to end, without a wait.
  void ask_to_end() noexcept;
  // Without a wait: those that are still there are killed, those that cannot be are asked to end.
  void abandon() noexcept;

 private:
  // crew.cpp
  Peer::Message receive(std::uint32_t w, Error& error);
  void handle_message(std::uint32_t w);
  void read_last_messages(std::uint32_t w);
  void drain_lane(std::uint32_t w);
  void handle_end(std::uint32_t w);
  [[nodiscard]] std::int64_t new_oom_kills() const;

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
  Roster roster_;
  Deadlines deadlines_;
  Starter starter_;
  std::vector<std::uint64_t> oldest_;  // see audit
  os::SystemFiles files_;
  std::int64_t oom_kills_ = -1;  // of this memory cgroup when the loader was created, -1: unknown
  bool is_stopping_ = false;
  bool has_overdue_events_ = false;
};

}  // namespace feedlane::supervisor
