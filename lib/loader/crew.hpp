// SPDX-License-Identifier: Apache-2.0
// The workers of a loader. The crew reads their messages, watches and stops them; its Starter starts and replaces them.
//
//   crew.cpp    messages of workers, and their ends
//   limits.cpp  missed deadlines and failed audits
//   ending.cpp  asks workers to end, kills them, waits for their ends
//
// Used by the loader's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "loader/collector.hpp"
#include "loader/dispatcher.hpp"
#include "loader/failure.hpp"
#include "loader/ledger.hpp"
#include "loader/starter.hpp"
#include "loader/wakeups.hpp"
#include "monitor/events.hpp"
#include "os/limits.hpp"
#include "os/poller.hpp"
#include "ring/waiter.hpp"
#include "shm/segment.hpp"
#include "supervisor/deadlines.hpp"
#include "supervisor/roster.hpp"
#include "supervisor/settings.hpp"

namespace feedlane::loader {

class Crew {
 public:
  // All arguments must outlive the crew.
  Crew(const supervisor::Settings& settings, shm::Segments& segments, monitor::EventQueue& events, ring::Waiter& waiter,
       supervisor::Roster& roster, Ledger& ledger, Failure& failure, Wakeups& wakeups, Collector& collector,
       Dispatcher& dispatcher)
      : settings_(settings),
        segments_(segments),
        events_(events),
        waiter_(waiter),
        roster_(roster),
        ledger_(ledger),
        failure_(failure),
        wakeups_(wakeups),
        collector_(collector),
        dispatcher_(dispatcher),
        deadlines_(settings),
        starter_(settings, segments, events, waiter, roster, failure, dispatcher, deadlines_) {}
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  Status set_up(supervisor::ChildMain child_main, const os::SystemFiles& files, Error& error);
  [[nodiscard]] Starter& starter() { return starter_; }
  // Number of workers; 0: the loader is inline.
  [[nodiscard]] std::uint32_t size() const { return roster_.size(); }

  // Opens a place for a worker that the host starts: see feedlane_loader_open_worker.
  Status open_worker(std::int32_t& id, os::Fd& fd, Error& error);

  // ---- results, events, deadlines ----

  // Takes all results from the lanes. Bounded, because a worker has no more open tasks than it was sent, and any other
  // result shuts its lane.
  void sweep();
  // Looks at a few lanes only, in turn: while a batch is ready, a call of `next` need not look at each worker's.
  void sweep_some();
  // Handles an event of the waiter; ignores events that are not the crew's.
  void handle(const os::Poller::Event& event);
  // Handles pending deaths and messages and missed deadlines. Doesn't wait.
  Status handle_events(Error& error);
  // The same, if a task or a message is overdue. A wait handles deaths, but with out-of-order delivery or a slow trainer
  // there may never be a wait.
  Status handle_overdue_events(Error& error);
  // Compares the workers' rows and lanes with what the trainer knows. Call it with the doorbell armed before a sleep: a
  // worker rings after it has marked a task answered, so a change after the audit wakes the trainer.
  // True: it has received a message or refused a worker, so the caller must look for results before it sleeps.
  [[nodiscard]] bool audit();
  void look() { deadlines_.look(roster_.members()); }
  // When the next deadline of a worker passes, and when the trainer must look again: see Deadlines.
  [[nodiscard]] os::Deadline next_deadline() const { return deadlines_.next(roster_.members()); }
  [[nodiscard]] os::Deadline next_look() const { return deadlines_.next_look(roster_.members()); }

  // ---- ending ----

  // Ends all workers at once: done-event, then SIGTERM, then SIGKILL. After SIGKILL, processes have `death_ns` to end.
  Status end(std::int64_t death_ns, Error& error);
  // Asks all workers to end, and waits for their ends until the deadline. TIMEOUT, INTERRUPTED.
  Status end_gently(os::Deadline deadline, Error& error);
  // Asks all workers to end. Doesn't wait.
  void ask_to_end() noexcept;
  // Asks all workers to end, and kills the children. Doesn't wait.
  void abandon() noexcept;

 private:
  static constexpr std::uint32_t some_lanes = 32;

  // crew.cpp
  supervisor::Peer::Message receive(std::uint32_t w, Error& error);
  void handle_message(std::uint32_t w);
  bool take_result(std::uint32_t& looks);
  void handle_result(std::uint32_t w, const std::byte* message);
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
  bool audit(std::uint32_t w, std::uint64_t oldest);
  void disown(std::uint32_t w, std::uint64_t task, const Error& why);

  // ending.cpp
  void ask_each_to_end();
  Status wait_for_ends(os::Deadline deadline, bool is_interruptible, Error& error);
  Status wait_for_undead(std::int64_t death_ns, Error& error);
  void kill_all(int signal);

  const supervisor::Settings& settings_;
  shm::Segments& segments_;
  monitor::EventQueue& events_;
  ring::Waiter& waiter_;
  supervisor::Roster& roster_;
  Ledger& ledger_;
  Failure& failure_;
  Wakeups& wakeups_;
  Collector& collector_;
  Dispatcher& dispatcher_;
  supervisor::Deadlines deadlines_;
  Starter starter_;
  std::vector<std::uint64_t> oldest_;  // used by `audit`
  os::SystemFiles files_;
  std::int64_t oom_kills_ = -1;  // count of this memory cgroup when the loader was created, -1: unknown
  bool is_stopping_ = false;
  bool is_overdue_ = false;
};

}  // namespace feedlane::loader
